// Words beside the pointer: what is drawn under it.

export class Tip {
  /** `picture` has a surface and at(x, y), which tells what is there. */
  constructor(picture) {
    this.picture = picture;
    this.element = document.getElementById("tip");
    const { canvas } = picture.surface;
    for (const name of ["pointermove", "pointerdown"]) canvas.addEventListener(name, (event) => this.show(event));
    for (const name of ["pointerleave", "pointercancel"]) canvas.addEventListener(name, () => this.hide());
  }

  show(event) {
    const box = this.picture.surface.canvas.getBoundingClientRect();
    const text = this.picture.at(event.clientX - box.left, event.clientY - box.top);
    if (text === null) return this.hide();
    this.element.textContent = text;
    this.element.hidden = false;
    const left = Math.min(event.clientX + 12, document.documentElement.clientWidth - this.element.offsetWidth - 4);
    this.element.style.transform = `translate(${Math.max(4, left)}px, ${event.clientY + 14}px)`;
  }

  hide() {
    this.element.hidden = true;
  }
}
