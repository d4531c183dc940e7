// A line of recent values; it starts at zero, so that its height means something.

import { Surface } from "./surface.js";

export class Sparkline {
  constructor(id, paint) {
    this.surface = new Surface(document.getElementById(id));
    this.paint = paint;
  }

  /** `points` are [moment, value]; the line covers `span` seconds up to `t`. `top` is the least that its height means. */
  draw(points, t, span, top = 0) {
    const pen = this.surface.begin();
    const { width, height } = this.surface;
    const shown = points.filter(([moment, value]) => moment >= t - span && value !== null);
    pen.fillStyle = this.paint.line;
    pen.fillRect(0, height - 1, width, 1);
    if (shown.length < 2) return;
    const most = Math.max(top, ...shown.map(([, value]) => value)) || 1;
    const x = (moment) => ((moment - t) / span + 1) * width;
    const y = (value) => height - 2 - (value / most) * (height - 5);
    pen.beginPath();
    shown.forEach(([moment, value], place) => pen[place ? "lineTo" : "moveTo"](x(moment), y(value)));
    pen.strokeStyle = this.paint.main;
    pen.lineWidth = 1.8;
    pen.lineJoin = "round";
    pen.stroke();
    pen.lineTo(x(shown.at(-1)[0]), height - 1);
    pen.lineTo(x(shown[0][0]), height - 1);
    pen.globalAlpha = 0.13;
    pen.fillStyle = this.paint.main;
    pen.fill();
    pen.globalAlpha = 1;
  }
}
