// One executor: its rows over time, beside them its batch as it lies in memory, and its figures.

import { Columns } from "./columns.js";
import { History } from "./history.js";
import { count, percent } from "./numbers.js";
import { DECODE, PAUSED, PREFILL } from "./stages.js";
import { Surface } from "./surface.js";
import { Timeline } from "./timeline.js";
import { Tip } from "./tip.js";

const LEAST = 16; // lanes, unless the executor has fewer slots
const MOST = 128;
const NARROW = 500; // pixels

/** Whether a device is another server, before which this is a gateway. */
export const isRemote = (device) => device.device.includes("://");

export class Panel {
  constructor(device, paint) {
    this.device = device;
    this.remote = isRemote(device);
    this.history = new History();
    this.element = document.createElement("div");
    this.element.className = "executor";
    this.title = this.add(this.element, "h3", `${this.remote ? "Backend" : "Executor"} ${device.index} · ${device.device}`);
    this.note = this.add(this.element, "p", "");
    this.note.className = "fine";
    const pair = this.add(this.element, "div", "");
    pair.className = "lanes";
    this.timeline = new Timeline(this.picture(pair, this.remote ? "running requests over time" : "rows over time; a full lane is a row without padding"), this.history, paint);
    if (!this.remote) this.columns = new Columns(this.picture(pair, "the batch now: padding, prompt, generated | predicted"), this.history, paint);
    this.told = -10;
    this.tip = new Tip(this.timeline);
  }

  add(parent, kind, text) {
    const element = document.createElement(kind);
    element.textContent = text;
    parent.append(element);
    return element;
  }

  picture(parent, caption) {
    const figure = this.add(parent, "figure", "");
    const canvas = this.add(figure, "canvas", "");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", caption);
    this.add(figure, "figcaption", caption);
    return new Surface(canvas);
  }

  tick(executor, t) {
    this.history.see(executor, t);
    const { rows } = this.history;
    const running = rows.filter((one) => one.stage === DECODE).length;
    const used = executor.capacity ? (executor.batch * executor.window) / executor.capacity : 0;
    if (this.remote) this.note.textContent = executor.alive ? `${running} answers come` : "does not answer, or rests";
    else this.note.textContent = executor.alive
      ? `${running} of ${this.device.max_rows} slots decode · longest sequence ${count(executor.window)} tokens · ` +
        `${percent(used)} of the KV cache · ${count(executor.step_ms)} ms a step`
      : "gone";
    if (t - this.told > 3) this.describe(t, rows, executor);
  }

  /** The picture in words, for those who do not see it; seldom, so that it can be read. */
  describe(t, rows, executor) {
    this.told = t;
    const of = (stage) => rows.filter((one) => one.stage === stage).length;
    const own = rows.filter((one) => one.stage === DECODE).map((one) => one.input + one.generated);
    const cells = own.length * executor.window;
    const padding = cells ? 1 - own.reduce((sum, one) => sum + Math.min(one, executor.window), 0) / cells : 0;
    const text = this.remote ? `Backend ${executor.index}: ${of(DECODE)} answers come` :
      `Executor ${executor.index}: ${of(DECODE)} sequences decode, ${of(PREFILL)} in prefill, ${of(PAUSED)} preempted, ` +
      `${percent(padding)} of what a step reads is padding`;
    this.timeline.surface.canvas.setAttribute("aria-label", text);
    this.columns?.surface.canvas.setAttribute("aria-label", text);
  }

  draw(t, span) {
    const least = Math.min(this.device.max_rows, this.timeline.surface.width < NARROW ? LEAST / 2 : LEAST);
    const lanes = Math.min(MOST, Math.max(least, this.history.used(t - span)));
    this.timeline.draw(t, span, lanes);
    this.columns?.draw(lanes);
  }
}
