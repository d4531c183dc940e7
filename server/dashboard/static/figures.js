// The figures at the top: rates and latencies of the last minute, each with its line.

import { count, percent, quantile, seconds, sorted } from "./numbers.js";
import { Sparkline } from "./sparkline.js";

const SPAN = 60;
const RATE = 2; // seconds over which a rate is taken
const KEPT = 500; // answers, and first tokens

export class Figures {
  constructor(paint) {
    this.lines = Object.fromEntries(
      ["speed", "first", "latency", "requests", "useful", "order", "kept"].map((name) => [name, new Sparkline(`${name}-line`, paint)]),
    );
    this.begin([], [], []);
  }

  /** Start anew, with the answers that ended before, the first tokens that came before, and the last minute's totals. */
  begin(ended, first, moments) {
    this.ticks = [];
    this.ended = [...ended];
    this.first = [...first];
    this.points = { speed: [], first: [], latency: [], requests: [], useful: [], order: [], kept: [] };
    this.next = 0;
    for (const moment of moments) {
      this.keep(moment);
      this.note(moment);
    }
  }

  keep({ t, totals, waiting, running }) {
    this.ticks.push({ t, totals, waiting, running });
    this.ticks = this.ticks.filter((one) => one.t > t - SPAN);
  }

  tick(tick) {
    this.keep(tick);
    this.points.order.push([tick.t, change(tick.order)]);
    this.ended.push(...tick.ended);
    this.points.kept.push([tick.t, share(this.promises())]);
    this.first.push(...tick.first_tokens);
    if (tick.t < this.next) return;
    this.next = tick.t + 0.5;
    this.note(tick);
    this.show(tick);
  }

  note(tick) {
    const { t } = tick;
    const since = this.ticks.find((one) => one.t >= t - RATE) ?? this.ticks[0];
    const made = difference(since, this.ticks.at(-1));
    this.points.speed.push([t, made.seconds ? made.generated / made.seconds : null]);
    this.points.requests.push([t, tick.waiting + tick.running]);
    this.points.useful.push([t, made.all ? (made.all - made.wasted) / made.all : null]);
    this.points.first.push([t, quantile(this.firstTokens(t, 10), 0.5) ?? null]);
    this.points.latency.push([t, quantile(this.latencies(t, 10), 0.5) ?? null]);
    for (const name of Object.keys(this.points)) {
      this.points[name] = this.points[name].filter(([moment]) => moment > t - SPAN);
    }
  }

  firstTokens(t, span) {
    return sorted(recent(this.first, t, span).map((one) => one[1]));
  }

  /** Of the latest answers that were told an end, whether they kept it. */
  promises() {
    return this.ended.map((one) => one[8]).filter((kept) => kept !== null).slice(-KEPT);
  }

  latencies(t, span) {
    return sorted(recent(this.ended, t, span).map((one) => one[6]));
  }

  show(tick) {
    const { t } = tick;
    const made = difference(this.ticks[0], this.ticks.at(-1));
    const kept = made.cached ? `, ${percent(made.cached / (made.cached + made.prompt))} of prompts kept` : "";
    this.say("speed", count(this.points.speed.at(-1)[1] ?? 0), `generated; ${count(rate(made.prompt, made))} read${kept}`);
    this.saySeconds("first", this.firstTokens(t, SPAN));
    this.saySeconds("latency", this.latencies(t, SPAN));
    this.ended = this.ended.slice(-KEPT);
    this.first = this.first.slice(-KEPT);
    this.say("requests", count(tick.running), `running; ${tick.waiting ? count(tick.waiting) : "none"} waiting`);
    const note = made.all ? `${percent(made.pad / made.all)} padding read, ${percent(made.invalid / made.all)} invalid` : "of all cells read";
    this.say("useful", percent(1 - made.wasted / made.all), note);
    const promised = this.promises();
    this.say("kept", percent(share(promised)), promised.length ? `of the last ${count(promised.length)}; 95 % are promised` : "none told yet");
    this.say("order", compared(change(tick.order)), orderNote(tick.order));
    for (const [name, line] of Object.entries(this.lines)) line.draw(this.points[name], t, SPAN, name === "useful" || name === "kept" ? 1 : 0);
  }

  saySeconds(name, values) {
    const slow = quantile(values, 0.95);
    this.say(name, seconds(quantile(values, 0.5)), values.length ? `median; 95 % within ${seconds(slow)}` : "median");
  }

  say(name, value, note) {
    document.getElementById(name).textContent = value;
    document.getElementById(`${name}-note`).textContent = note;
  }
}

function share(flags) {
  return flags.length ? flags.filter((one) => one).length / flags.length : null;
}

/** By how much the mean latency a token differs from first come, first served; null before enough answers waited. */
function change(order) {
  return order && order.normalized / order.normalized_by_arrival - 1;
}

function orderNote(order) {
  if (!order) return "once 30 answers have waited";
  return `over the last ${count(order.answers)} answers; worst delay ${seconds(order.latest)}`;
}

function compared(share) {
  if (share === null) return "–";
  return Math.abs(share) < 0.005 ? "same" : `${percent(Math.abs(share))} ${share > 0 ? "worse" : "better"}`;
}

function recent(events, t, span) {
  return events.filter((one) => one[0] > t - span && one[0] <= t);
}

function difference(from, to) {
  const part = (name) => to.totals[name] - from.totals[name];
  const [prompt, generated, cached] = [part("prompt"), part("generated"), part("cached")];
  const [pad, invalid] = [part("pad") + part("pad_reads"), part("invalid_reads")];
  // Cells: those that prefills computed, and those that decode steps read.
  const all = prompt + part("pad") + part("reads");
  return { prompt, generated, cached, pad, invalid, wasted: pad + invalid, all, seconds: to.t - from.t };
}

function rate(tokens, made) {
  return made.seconds ? tokens / made.seconds : 0;
}
