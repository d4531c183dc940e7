// What was said and under which settings, kept in this browser until the user begins anew.

const PLACE = "lengthwise-chat";

export class Conversation {
  constructor() {
    const kept = JSON.parse(localStorage.getItem(PLACE) ?? "{}");
    this.turns = kept.turns ?? [];
    this.settings = kept.settings ?? {};
    this.refused = kept.refused ?? ""; // why the last message has no answer, or only a part of one
  }

  keep() {
    try {
      localStorage.setItem(PLACE, JSON.stringify({ turns: this.turns, settings: this.settings, refused: this.refused }));
    } catch (error) {
      if (error.name !== "QuotaExceededError") throw error; // too long to be kept, but not to be continued
    }
  }

  add(turn) {
    this.turns.push(turn);
    this.keep();
  }

  clear() {
    this.turns = [];
    this.refuse("");
  }

  refuse(reason) {
    this.refused = reason;
    this.keep();
  }

  /** The user's message that has no answer, or empty. */
  unanswered() {
    const last = this.turns.at(-1);
    return last?.role === "user" ? last.content : "";
  }

  /** Forget the last answer, if there is one; tells whether a message is left to be answered. */
  takeBack() {
    if (this.turns.at(-1)?.role === "assistant") this.turns.pop();
    this.keep();
    return this.turns.length > 0;
  }

  /** Forget a message that was never answered, or the results of calls: it may be what the server refuses. */
  dropUnanswered() {
    while (this.turns.length && this.turns.at(-1).role !== "assistant") this.turns.pop();
  }

  /** The first call of a tool that has no result yet; undefined where the last answer called none, or all have theirs:
   * the first one, if they shall be given `again`. */
  openCall(again = false) {
    const at = this.turns.findLastIndex((turn) => turn.role !== "tool");
    const calls = this.turns[at]?.tool_calls ?? [];
    return calls[this.turns.length - 1 - at] ?? (again ? calls[0] : undefined);
  }

  /** The fields of a request for the next answer, of two where a second one is wanted beside it; settings that are empty
   * are left to the server. Throws where one that is JSON is none. */
  bodies() {
    const { system, schema, tools, beside, ...sampling } = this.settings;
    const body = { messages: [...(system ? [{ role: "system", content: system }] : []), ...this.turns] };
    for (const [name, value] of Object.entries(sampling)) if (value !== "") body[name] = Number(value);
    if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
    if (tools) body.tools = JSON.parse(tools);
    return beside ? [body, { ...body, temperature: Number(beside) }] : [body];
  }
}
