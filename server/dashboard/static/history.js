// What happened on the lanes of one executor: for each lane the stages that rows went through, oldest first.

import { DECODE, GONE } from "./stages.js";

const KEPT = 310; // seconds
const PARTS = 6; // steps in which an earlier decode is drawn

export class History {
  constructor() {
    this.lanes = [];
    this.rows = [];
    this.now = null;
  }

  /** A row's stage has changed, also before the page was opened: then its decode had all shares between two. */
  change([at, , lane, row, stage, input, generated, predicted, own], past = false) {
    const open = this.open(lane);
    if (open && (open.row === row || stage !== GONE)) {
      open.to = Math.max(open.from, at);
      if (open.row === row) Object.assign(open, { input, generated, predicted });
      if (open.row === row && open.stage === DECODE && past) spread(open, own);
    }
    if (stage === GONE) return;
    Object.assign(this.begin(lane, row, stage, at), { input, generated, predicted, shares: [{ t: at, own }] });
  }

  /** The executor as it is; whatever changes were missed on the way are made up for. */
  see(executor, t) {
    this.now = executor;
    this.rows = executor.rows.map(([lane, row, stage, input, generated, predicted]) => ({
      lane, row, stage, input, generated, predicted,
    }));
    const taken = new Set();
    for (const one of this.rows) {
      taken.add(one.lane);
      this.agree(one, t, executor.window);
    }
    for (let lane = 0; lane < this.lanes.length; lane += 1) {
      const open = this.open(lane);
      if (open && !taken.has(lane)) open.to = t;
    }
    this.forget(t - KEPT);
  }

  agree(one, t, window) {
    let open = this.open(one.lane);
    if (!open || open.row !== one.row || open.stage !== one.stage) {
      if (open) open.to = t;
      open = this.begin(one.lane, one.row, one.stage, t);
    }
    open.input = one.input;
    open.generated = one.generated;
    open.predicted = one.predicted;
    if (one.stage === DECODE) note(open.shares, t, window ? Math.min(1, (one.input + one.generated) / window) : 1);
  }

  begin(lane, row, stage, from) {
    while (this.lanes.length <= lane) this.lanes.push([]);
    const segment = { row, stage, from, to: null, shares: [] };
    this.lanes[lane].push(segment);
    return segment;
  }

  open(lane) {
    const last = this.lanes[lane]?.at(-1);
    return last && last.to === null ? last : undefined;
  }

  /** Lanes that hold anything after `since`. */
  used(since) {
    let count = this.lanes.length;
    while (count && !this.lanes[count - 1].some((one) => one.to === null || one.to > since)) count -= 1;
    return count;
  }

  /** Close everything: the connection was lost, and nobody knows. */
  end(t) {
    for (let lane = 0; lane < this.lanes.length; lane += 1) {
      const open = this.open(lane);
      if (open) open.to = t;
    }
  }

  forget(before) {
    for (const segments of this.lanes) {
      while (segments.length && segments[0].to !== null && segments[0].to < before) segments.shift();
    }
  }
}

/** Shares from the first one of a decode to the last. */
function spread(segment, last) {
  const { from, to, shares: [{ own: first }] } = segment;
  segment.shares = Array.from({ length: PARTS }, (_, part) => {
    return { t: from + (part / PARTS) * (to - from), own: first + (part / (PARTS - 1)) * (last - first) };
  });
}

/** The part of what each step reads that is the row's own; noted when it has changed visibly. */
function note(shares, t, own) {
  const last = shares.at(-1);
  if (!last || Math.abs(last.own - own) > 0.01) shares.push({ t, own });
}
