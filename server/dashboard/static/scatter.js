// Predicted against true length of the latest answers, both on logarithmic axes; on the diagonal they are equal.

import { count, percent } from "./numbers.js";
import { Surface } from "./surface.js";

const KEPT = 400;
const EDGE = 34;

export class Scatter {
  constructor(paint) {
    this.paint = paint;
    this.points = [];
    this.empty = document.getElementById("lengths-empty");
    this.note = document.getElementById("lengths-note");
    this.canvas = document.getElementById("lengths");
    this.canvas.hidden = true;
    this.surface = new Surface(this.canvas, () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => requestAnimationFrame(() => this.draw()));
  }

  begin(ended) {
    this.points = [];
    this.ended = 0;
    this.add(ended);
  }

  add(ended) {
    if (!ended.length) return;
    this.ended += ended.length;
    const known = ended.filter((one) => one[3] !== null && one[2] > 0);
    this.points = [...this.points, ...known.map((one) => [Math.max(1, one[3]), one[2], one[7]])].slice(-KEPT);
    this.tell();
    this.draw();
  }

  tell() {
    const some = this.points.length > 0;
    this.empty.hidden = some;
    this.canvas.hidden = !some;
    this.empty.textContent = "No answer yet that was predicted and ended by itself. Where the strategy predicts no lengths, --length-predictor adds them.";
    if (!some) return;
    const near = this.points.filter(([predicted, actual]) => Math.max(predicted / actual, actual / predicted) <= 2);
    const judged = this.points.filter(([, , inside]) => inside !== null);
    const covered = judged.filter(([, , inside]) => inside).length / judged.length;
    const coverage = judged.length ? `, ${percent(covered)} in their 90 % interval` : "";
    const text = `${count(this.points.length)} predicted: ${percent(near.length / this.points.length)} within a factor of 2${coverage}`;
    this.note.textContent = text;
    this.note.title = "Answers that max_tokens has cut, and predictions of max_tokens, are left out: they tell nothing of the predictor.";
    this.canvas.setAttribute("aria-label", `Predicted and true length of ${this.points.length} answers: ${text}`);
  }

  draw() {
    if (!this.points.length || !this.surface.width) return;
    const pen = this.surface.begin();
    const top = Math.max(10, ...this.points.map(([predicted, actual]) => Math.max(predicted, actual)));
    const scale = { pen, most: Math.log10(top * 1.15) };
    this.drawAxes(scale, top);
    pen.fillStyle = this.paint.main;
    this.points.forEach((point, place) => {
      pen.globalAlpha = 0.25 + 0.6 * ((place + 1) / this.points.length);
      pen.beginPath();
      pen.arc(this.x(point[0], scale), this.y(point[1], scale), 3.2, 0, 7);
      pen.fill();
    });
    pen.globalAlpha = 1;
  }

  x(value, { most }) {
    return EDGE + (Math.log10(value) / most) * (this.surface.width - EDGE - 8);
  }

  y(value, { most }) {
    return this.surface.height - EDGE - (Math.log10(value) / most) * (this.surface.height - EDGE - 8);
  }

  drawAxes(scale, top) {
    const { pen } = scale;
    const { width, height } = this.surface;
    pen.font = `11px ${this.paint.font}`;
    for (const mark of [1, 10, 100, 1000, 10000, 100000].filter((one) => one <= top * 1.15)) {
      const x = this.x(mark, scale);
      const y = this.y(mark, scale);
      pen.fillStyle = this.paint.grid;
      pen.fillRect(x, 8, 1, height - EDGE - 8);
      pen.fillRect(EDGE, y, width - EDGE - 8, 1);
      pen.fillStyle = this.paint.faint;
      pen.textAlign = "center";
      pen.textBaseline = "top";
      pen.fillText(count(mark), x, height - EDGE + 4);
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(count(mark), EDGE - 5, y);
    }
    pen.textAlign = "right";
    pen.textBaseline = "alphabetic";
    pen.fillText("predicted tokens", width - 8, height - 4);
    pen.textAlign = "left";
    pen.textBaseline = "top";
    pen.fillText("true tokens", EDGE + 5, 4);
    pen.strokeStyle = this.paint.edge;
    pen.setLineDash([4, 4]);
    pen.beginPath();
    pen.moveTo(this.x(1, scale), this.y(1, scale));
    pen.lineTo(this.x(top, scale), this.y(top, scale));
    pen.stroke();
    pen.setLineDash([]);
  }
}
