// Rows over time, a lane each: what a row does is its colour, and in decode its own part of what a step reads its height.

import { DECODE, INVALID, NAMES, PAUSED, PREFILL, STAGED } from "./stages.js";

const AXIS = 18;

const TALL = 320;

/** Pixels from one lane to the next: as many as fit, so that the picture hardly changes its height. */
export function pitchFor(lanes) {
  return Math.max(5, Math.min(20, Math.floor(TALL / lanes)));
}

export class Timeline {
  constructor(surface, history, paint) {
    this.surface = surface;
    this.history = history;
    this.paint = paint;
  }

  /** Draw the `span` seconds before `t`, on so many lanes. */
  draw(t, span, lanes) {
    const pitch = pitchFor(lanes);
    this.surface.setHeight(lanes * pitch + AXIS);
    this.view = { t, span, pitch, lanes };
    const pen = this.surface.begin();
    this.drawAxis(pen, lanes * pitch);
    for (let lane = 0; lane < Math.min(lanes, this.history.lanes.length); lane += 1) {
      for (const segment of this.history.lanes[lane]) this.drawSegment(pen, segment, lane * pitch + 1, pitch - 2);
    }
  }

  place(moment) {
    const { t, span } = this.view;
    return ((moment - t) / span + 1) * this.surface.width;
  }

  drawAxis(pen, bottom) {
    const { t, span } = this.view;
    const wish = (span * 80) / this.surface.width;
    const step = [1, 2, 5, 10, 15, 30, 60, 120].find((one) => one >= wish) ?? 300;
    pen.font = `11px ${this.paint.font}`;
    pen.textBaseline = "alphabetic";
    for (let ago = 0; ago < span; ago += step) {
      const x = this.place(t - ago);
      pen.fillStyle = this.paint.grid;
      if (ago) pen.fillRect(Math.round(x), 0, 1, bottom);
      pen.fillStyle = this.paint.faint;
      pen.textAlign = ago ? "center" : "right";
      pen.fillText(ago ? `−${ago} s` : "now", ago ? x : x - 2, bottom + 13);
    }
  }

  drawSegment(pen, segment, y, height) {
    const right = Math.min(this.surface.width, this.place(segment.to ?? this.view.t));
    const left = Math.max(0, this.place(segment.from));
    if (right <= 0 || left >= this.surface.width) return;
    const width = Math.max(1, right - left);
    if (segment.stage === DECODE) this.drawDecode(pen, segment, left, right, y, height);
    else this.drawPlain(pen, segment.stage, left, width, y, height);
    if (height >= 11 && width > 40 && (segment.stage === DECODE || segment.stage === PREFILL)) {
      this.label(pen, segment, left, y, height);
    }
  }

  drawPlain(pen, stage, x, width, y, height) {
    const colours = { [PREFILL]: "prefill", [PAUSED]: "paused", [INVALID]: "invalid", [STAGED]: "staged" };
    pen.fillStyle = this.paint[colours[stage]];
    if (stage === STAGED) pen.fillRect(x, y + height / 2 - 1, width, 2);
    else pen.fillRect(x, y, width, height);
  }

  drawDecode(pen, segment, left, right, y, height) {
    pen.fillStyle = this.paint.padding;
    pen.fillRect(left, y, Math.max(1, right - left), height);
    pen.fillStyle = this.paint.decode;
    const shares = segment.shares.length ? segment.shares : [{ t: segment.from, own: 1 }];
    shares.forEach((share, place) => {
      // Whole pixels, so that no seam shows where two shares meet.
      const from = Math.floor(Math.max(left, place ? this.place(share.t) : left));
      const to = Math.ceil(Math.min(right, place + 1 < shares.length ? this.place(shares[place + 1].t) : right));
      if (to <= from && right - left > 1) return;
      const own = Math.max(1.5, share.own * height);
      pen.fillRect(from, y + height - own, Math.max(1, to - from), own);
    });
  }

  label(pen, segment, left, y, height) {
    pen.font = `600 ${Math.min(11, height - 2)}px ${this.paint.font}`;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.lineWidth = 3;
    pen.lineJoin = "round";
    pen.strokeStyle = this.paint.card;
    pen.fillStyle = this.paint.ink;
    pen.strokeText(segment.row, left + 4, y + height / 2 + 0.5);
    pen.fillText(segment.row, left + 4, y + height / 2 + 0.5);
  }

  /** What is drawn at a point of the canvas, in words; null where nothing is. */
  at(x, y) {
    if (!this.view) return null;
    const moment = this.view.t + (x / this.surface.width - 1) * this.view.span;
    const segments = this.history.lanes[Math.floor(y / this.view.pitch)] ?? [];
    const found = segments.find((one) => one.from <= moment && moment <= (one.to ?? this.view.t));
    if (!found) return null;
    const seconds = ((found.to ?? this.view.t) - found.from).toFixed(1);
    const predicted = found.predicted === null || found.predicted === undefined ? "" : `, ${found.predicted} predicted`;
    const lengths = found.input === undefined ? "" : `\n${found.input} in, ${found.generated} out${predicted}`;
    return `row ${found.row}: ${NAMES[found.stage]} for ${seconds} s${lengths}`;
  }
}
