// The requests that wait: first those that an executor has, then the queue in the order in which it is served.

import { count, seconds } from "./numbers.js";
import { fill } from "./table.js";

export class Queue {
  /** `explanation` tells why a row waits. */
  constructor(explanation) {
    this.rows = [];
    this.body = document.querySelector("#queue tbody");
    this.head = document.querySelector("#queue thead");
    this.empty = document.getElementById("queue-empty");
    this.note = document.getElementById("queue-note");
    this.body.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) explanation.show(this.rows[button.closest("tr").sectionRowIndex]);
    });
  }

  begin(strategy) {
    this.strategy = strategy;
  }

  tick(tick) {
    this.rows = tick.queue.map(([row]) => row);
    let place = 0;
    fill(this.body, tick.queue.map((waiter) => line(waiter, waiter[7] === null ? count((place += 1)) : "–")), "button");
    this.head.hidden = !tick.queue.length;
    this.empty.hidden = tick.queue.length > 0;
    const more = tick.waiting - tick.queue.length;
    const hidden = more > 0 ? `, ${count(more)} of them not shown` : "";
    this.note.textContent = tick.waiting ? `${count(tick.waiting)} waiting${hidden}, sorted by ${this.strategy}; click an ID for why it waits` : "";
  }
}

function line([row, input, generated, predicted, waited, expected, priority, executor], place) {
  const marks = [`${row}`];
  if (priority) marks.push(`priority ${priority}`);
  if (generated) marks.push(`preempted after ${count(generated)}`);
  const wait = executor === null ? (expected === null ? "–" : `≈ ${seconds(expected)}`) : `on executor ${executor}`;
  return [marks.join(" · "), place, count(input), count(predicted), seconds(waited), wait];
}
