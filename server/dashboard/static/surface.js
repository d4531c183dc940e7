// A canvas in CSS pixels that is sharp on every screen and follows its element's size.

export class Surface {
  constructor(canvas, resized = () => {}) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    new ResizeObserver(() => {
      this.width = canvas.clientWidth;
      this.height = canvas.clientHeight;
      resized();
    }).observe(canvas);
  }

  /** Give the element another height. */
  setHeight(height) {
    if (this.height === height) return;
    this.height = height;
    this.canvas.style.height = `${height}px`;
  }

  /** Wipe it; returns the pen. */
  begin() {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.round(this.width * ratio);
    const height = Math.round(this.height * ratio);
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.pen.clearRect(0, 0, this.width, this.height);
    return this.pen;
  }
}
