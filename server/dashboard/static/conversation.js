// What was said and under which settings, kept in this browser until the user begins anew.

const PLACE = "lengthwise-chat";

export class Conversation {
  constructor() {
    const kept = JSON.parse(localStorage.getItem(PLACE) ?? "{}");
    this.turns = kept.turns ?? [];
    this.settings = kept.settings ?? {};
  }

  keep() {
    try {
      localStorage.setItem(PLACE, JSON.stringify({ turns: this.turns, settings: this.settings }));
    } catch (error) {
      if (error.name !== "QuotaExceededError") throw error; // too long to be kept, but not to be continued
    }
  }

  add(role, content) {
    this.turns.push({ role, content });
    this.keep();
  }

  clear() {
    this.turns = [];
    this.keep();
  }

  /** Forget the last answer, if there is one; tells whether a message is left to be answered. */
  takeBack() {
    if (this.turns.at(-1)?.role === "assistant") this.turns.pop();
    this.keep();
    return this.turns.length > 0;
  }

  /** The fields of a request for the next answer; settings that are empty are left to the server. */
  body() {
    const { system, ...sampling } = this.settings;
    const before = system ? [{ role: "system", content: system }] : [];
    const given = Object.entries(sampling).filter(([, value]) => value !== "");
    return { messages: [...before, ...this.turns], ...Object.fromEntries(given.map(([name, value]) => [name, Number(value)])) };
  }
}
