// The batch as it lies in memory: a row's cells end at the column that all write next; what is predicted lies beyond.

import { DECODE, INVALID } from "./stages.js";
import { pitchFor } from "./timeline.js";

const AXIS = 18;

export class Columns {
  constructor(surface, history, paint) {
    this.surface = surface;
    this.history = history;
    this.paint = paint;
  }

  draw(lanes) {
    const pitch = pitchFor(lanes);
    this.surface.setHeight(lanes * pitch + AXIS);
    const pen = this.surface.begin();
    const window = this.history.now?.window ?? 0;
    const rows = this.history.rows.filter((one) => one.stage === DECODE || one.stage === INVALID);
    if (!window || !rows.length) return this.say(pen, lanes * pitch);
    const most = Math.max(0, ...rows.map(remaining));
    const future = Math.min(most, window);
    const end = (this.surface.width * window) / (window + future);
    const scale = end / window;
    for (const one of rows.filter((row) => row.lane < lanes)) {
      this.drawRow(pen, one, window, { end, scale, y: one.lane * pitch + 1, height: pitch - 2 });
    }
    this.drawEnd(pen, end, lanes * pitch, window, future > 0);
  }

  drawRow(pen, one, window, { end, scale, y, height }) {
    const own = Math.min(window, one.input + one.generated);
    const generated = Math.min(own, one.generated);
    pen.fillStyle = this.paint.padding;
    pen.fillRect(0, y, (window - own) * scale, height);
    pen.fillStyle = one.stage === INVALID ? this.paint.invalid : this.paint.prompt;
    pen.fillRect((window - own) * scale, y, (own - generated) * scale, height);
    pen.fillStyle = one.stage === INVALID ? this.paint.invalid : this.paint.decode;
    pen.fillRect((window - generated) * scale, y, generated * scale, height);
    const rest = remaining(one);
    if (rest > 0) {
      pen.strokeStyle = this.paint.decode;
      pen.lineWidth = 1;
      pen.setLineDash([3, 2]);
      pen.strokeRect(end + 0.5, y + height / 2 - 2, Math.min(rest * scale, this.surface.width - end - 1.5), 4);
      pen.setLineDash([]);
    }
  }

  drawEnd(pen, end, bottom, window, foreseen) {
    pen.fillStyle = this.paint.ink;
    pen.fillRect(Math.min(end, this.surface.width - 1), 0, 1, bottom);
    pen.font = `11px ${this.paint.font}`;
    pen.textBaseline = "alphabetic";
    pen.fillStyle = this.paint.faint;
    pen.textAlign = "left";
    pen.fillText(`${window.toLocaleString("en")} tokens`, 2, bottom + 13);
    pen.textAlign = "right";
    if (foreseen) pen.fillText("predicted →", this.surface.width - 2, bottom + 13);
  }

  say(pen, bottom) {
    pen.font = `12px ${this.paint.font}`;
    pen.fillStyle = this.paint.faint;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText("no row runs", this.surface.width / 2, bottom / 2);
  }
}

function remaining(one) {
  return one.stage === DECODE && one.predicted !== null ? Math.max(0, one.predicted - one.generated) : 0;
}
