// Colours of the style sheet as canvas paints; hatched ones differ in shape too, for those who see colours otherwise.

const PLAIN = ["prefill", "decode", "prompt", "padding", "staged", "ink", "faint", "line", "edge", "grid", "main", "bad"];

export class Paint {
  constructor() {
    this.read();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.read());
  }

  read() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(`--${name}`).trim();
    for (const name of PLAIN) this[name] = value(name);
    this.card = value("card");
    this.font = value("font");
    this.paused = hatch(value("paused"), value("card"), 1);
    this.invalid = hatch(value("invalid"), value("card"), -1);
    this.ghost = value("prompt");
  }
}

/** Stripes that lean to one side. */
function hatch(colour, ground, lean) {
  const size = 8;
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.fillStyle = colour;
  pen.globalAlpha = 0.35;
  pen.fillRect(0, 0, size, size);
  pen.globalAlpha = 1;
  pen.strokeStyle = colour;
  pen.lineWidth = 2.6;
  for (const shift of [-size, 0, size]) {
    pen.beginPath();
    pen.moveTo(shift, lean > 0 ? size : 0);
    pen.lineTo(shift + size, lean > 0 ? 0 : size);
    pen.stroke();
  }
  return pen.createPattern(tile, "repeat");
}
