// Who waits: first what executors have and have not begun, then the queue in its order, with what is expected of each.

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

  tick(tick) {
    this.rows = tick.queue.map(([row]) => row);
    fill(this.body, tick.queue.map(line), "button");
    this.head.hidden = !tick.queue.length;
    this.empty.hidden = tick.queue.length > 0;
    const more = tick.waiting - tick.queue.length;
    this.note.textContent = tick.waiting ? `${count(tick.waiting)} wait${more > 0 ? `, ${count(more)} not shown` : ""}` : "";
  }
}

function line([row, input, generated, predicted, waited, expected, priority, executor]) {
  const marks = [`${row}`];
  if (priority) marks.push(`priority ${priority}`);
  if (generated) marks.push(`paused after ${count(generated)}`);
  const wait = executor === null ? (expected === null ? "–" : `≈ ${seconds(expected)}`) : `on executor ${executor}`;
  return [marks.join(" · "), count(input), count(predicted), seconds(waited), wait];
}
