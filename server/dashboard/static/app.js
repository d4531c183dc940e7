// The page: puts the parts together, draws what the feed tells, and keeps the time.

import { Clients } from "./clients.js";
import { Explanation } from "./explanation.js";
import { Feed } from "./feed.js";
import { Figures } from "./figures.js";
import { Key } from "./key.js";
import { Paint } from "./paint.js";
import { isRemote, Panel } from "./panel.js";
import { Queue } from "./queue.js";
import { Rows } from "./rows.js";
import { Scatter } from "./scatter.js";
import { Shortcuts } from "./shortcuts.js";
import { LEGEND } from "./stages.js";

const BEHIND = 0.15; // seconds: drawn a little late, what is drawn is known
const FRAME = 100; // milliseconds: a browser on the server's own machine must leave it the cores
const STILL_FRAME = 1000;
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

class App {
  constructor() {
    this.paint = new Paint();
    this.panels = [];
    this.span = 30;
    this.frozen = null;
    this.clock = null;
    this.key = new Key(() => this.feed.retry());
    this.feed = new Feed(this.key, this);
    this.figures = new Figures(this.paint);
    this.queue = new Queue(new Explanation(this.key));
    this.clients = new Clients();
    this.rows = new Rows();
    this.scatter = new Scatter(this.paint);
    this.freezer = document.getElementById("freeze");
    this.spans = [...document.querySelectorAll("[data-span]")];
    this.wire();
    this.legend = LEGEND;
    this.drawLegend();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.drawLegend());
  }

  wire() {
    for (const button of this.spans) button.addEventListener("click", () => this.show(button));
    this.freezer.addEventListener("click", () => this.freeze());
    const spans = this.spans.map((button, place) => [`${place + 1}`, `show ${button.textContent}`, () => this.show(button)]);
    this.shortcuts = new Shortcuts([
      ["c", "chat", () => location.assign("chat")],
      ["f", "freeze the picture, or go on", () => this.freeze()],
      ...spans,
      ["k", "API key", () => this.key.ask()],
      ["?", "this list", () => this.shortcuts.dialog.showModal()],
    ]);
  }

  run() {
    this.feed.run();
    requestAnimationFrame(() => this.frame());
  }

  // What the feed tells

  link(state, text) {
    const element = document.getElementById("link");
    element.dataset.state = state;
    element.textContent = text;
    if (state === "lost") for (const panel of this.panels) panel.history.end(this.now());
  }

  hello(hello) {
    document.getElementById("model").textContent = hello.model;
    document.getElementById("strategy").textContent = hello.strategy;
    document.getElementById("version").textContent = hello.version;
    document.title = `${hello.model} · Lengthwise`;
    this.showEngine(!hello.devices.every((device) => isRemote(device)));
    this.clock = null;
    this.panels = hello.devices.map((device) => new Panel(device, this.paint));
    document.getElementById("executors").replaceChildren(...this.panels.map((panel) => panel.element));
    this.known = hello.t; // changes until then are in it
    for (const change of hello.changes) this.panel(change[1])?.history.change(change, true);
    this.queue.begin(hello.strategy);
    this.figures.begin(hello.ended, hello.first_tokens, hello.moments);
    this.scatter.begin(hello.ended);
  }

  tick(tick) {
    this.keepTime(tick.t);
    for (const change of tick.changes) if (change[0] > this.known) this.panel(change[1])?.history.change(change);
    for (const executor of tick.executors) this.panel(executor.index)?.tick(executor, tick.t);
    this.figures.tick(tick);
    this.queue.tick(tick);
    this.clients.tick(tick);
    this.rows.tick(tick.t, this.panels);
    this.scatter.add(tick.ended);
  }

  /** A gateway does not see how its backends compute. */
  showEngine(own) {
    document.getElementById("useful").closest(".figure").style.display = own ? "" : "none";
    document.getElementById("batch-title").textContent = own ? "Running batch" : "Running requests";
    this.legend = own ? LEGEND : LEGEND.filter(([name]) => name === "decode");
    this.drawLegend();
  }

  panel(index) {
    return this.panels.find((one) => one.device.index === index);
  }

  // Time

  /** The server's clock less ours; small differences are those of the way, and are smoothed. */
  keepTime(t) {
    const offset = t - performance.now() / 1000;
    const off = this.clock === null || Math.abs(offset - this.clock) > 0.5;
    this.clock = off ? offset : this.clock + 0.1 * (offset - this.clock);
  }

  now() {
    return (this.clock ?? 0) + performance.now() / 1000 - BEHIND;
  }

  /** Ten times a second, or once for those who want things to stand still; never in a hidden tab. */
  frame() {
    setTimeout(() => requestAnimationFrame(() => this.frame()), STILL.matches ? STILL_FRAME : FRAME);
    if (this.clock === null || this.frozen !== null) return;
    for (const panel of this.panels) panel.draw(this.now(), this.span);
  }

  // What the user does

  show(button) {
    this.span = Number(button.dataset.span);
    for (const one of this.spans) one.setAttribute("aria-pressed", `${one === button}`);
    for (const panel of this.panels) panel.draw(this.frozen ?? this.now(), this.span);
  }

  freeze() {
    this.frozen = this.frozen === null ? this.now() : null;
    this.freezer.setAttribute("aria-pressed", `${this.frozen !== null}`);
  }

  drawLegend() {
    const list = document.getElementById("legend");
    list.replaceChildren(
      ...this.legend.map(([name, text]) => {
        const item = document.createElement("li");
        const swatch = document.createElement("canvas");
        swatch.width = 22;
        swatch.height = 12;
        const pen = swatch.getContext("2d");
        pen.fillStyle = this.paint[name];
        if (name === "staged") pen.fillRect(0, 5, 22, 2);
        else pen.fillRect(0, 0, 22, 12);
        item.append(swatch, text);
        return item;
      }),
    );
  }
}

new App().run();
