// Why a request waits: how many are ahead and by which rule, and when it starts at the latest, as the server tells it.

import { count, seconds } from "./numbers.js";

export class Explanation {
  constructor(key) {
    this.key = key;
    this.dialog = document.getElementById("why");
    this.title = document.getElementById("why-title");
    this.list = document.getElementById("why-list");
    document.getElementById("why-close").addEventListener("click", () => this.dialog.close());
  }

  async show(row) {
    const response = await fetch(`v1/requests?row=${row}`, { headers: this.key.headers() });
    if (response.status === 401) return this.key.ask("The server wants an API key. It stays in this tab.");
    const told = await response.json();
    this.title.textContent = `Why request ${row} waits`;
    this.list.replaceChildren(...(told.error ? [told.error.message] : words(told.data[0])).map(item));
    if (!this.dialog.open) this.dialog.showModal();
  }
}

function item(text) {
  const element = document.createElement("li");
  element.textContent = text;
  return element;
}

function words(call) {
  if (!call) return ["It has ended, or belongs to another key: the server tells each key of its own calls only."];
  const reason = call.waits_for;
  if (!reason) return [call.state === "waiting" ? "An executor has it, and reads its prompt next." : `It is ${call.state}.`];
  const { ahead, better_priority: better, came_earlier: earlier, put_first: first, passed_for_s: passed } = reason;
  const kinds = [[better, "of better priority"], [earlier, "came earlier"], [first, "came later and are put first by the order or their deadline"]];
  const parts = kinds.filter(([many]) => many).map(([many, what]) => `${count(many)} ${what}`);
  const lines = [ahead ? `${count(ahead)} ahead by ${reason.strategy}: ${parts.join(", ")}.` : "It is next: it waits for a free slot."];
  if (reason.own_ahead.length) lines.push(`Of the same caller: ${reason.own_ahead.join(", ")}.`);
  const wait = call.expected_wait_s;
  if (wait !== null) lines.push(`It starts in about ${seconds(wait)}, if none comes that goes first.`);
  if (passed === null) lines.push("This order has no bound on how many that come later go first.");
  else if (!passed) lines.push("None that comes later goes first, but for better priority or a deadline.");
  else if (wait === null) lines.push(`Those that come later may go first for ${seconds(passed)} of full load at most.`);
  else lines.push(`At the latest in about ${seconds(wait + passed)}: those that come later may go first for ${seconds(passed)}, but for better priority or a deadline.`);
  return [...lines, `Its id: ${call.id}`];
}
