// What can be done with a row, by the numbers of server/dashboard/lanes.py, and how it is called and drawn.

export const GONE = 0;
export const PREFILL = 1;
export const STAGED = 2;
export const DECODE = 3;
export const PAUSED = 4;
export const INVALID = 5;

export const NAMES = {
  [PREFILL]: "prefill",
  [STAGED]: "waits for a slot",
  [DECODE]: "decode",
  [PAUSED]: "preempted",
  [INVALID]: "finished, slot still held",
};

/** Legend entries: [paint, text]. */
export const LEGEND = [
  ["prefill", "prefill: its prompt"],
  ["staged", "waits for a slot"],
  ["decode", "decode: its own tokens"],
  ["padding", "padding to the longest sequence"],
  ["paused", "preempted, swapped to host memory"],
  ["invalid", "finished, slot still held (static batch)"],
];
