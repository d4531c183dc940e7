// The rows of all executors as a table: what the picture shows, for those who cannot see it or want the numbers.

import { count } from "./numbers.js";
import { NAMES } from "./stages.js";
import { fill } from "./table.js";

export class Rows {
  constructor() {
    this.details = document.getElementById("rows");
    this.body = this.details.querySelector("tbody");
    this.next = 0;
  }

  /** At most twice a second, and only while it is open. */
  tick(t, panels) {
    if (!this.details.open || t < this.next) return;
    this.next = t + 0.5;
    fill(this.body, panels.flatMap((panel) => panel.history.rows.map((one) => line(one, panel.device.index))));
  }
}

function line(one, executor) {
  return [`${one.row}`, `${executor}`, NAMES[one.stage] ?? "", count(one.input), count(one.generated), count(one.predicted)];
}
