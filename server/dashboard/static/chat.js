// The page for conversations: shows what was said, asks for the next answer, stops it, asks again.

import { complete, summarize } from "./completion.js";
import { Conversation } from "./conversation.js";
import { Key } from "./key.js";
import { render } from "./markdown.js";
import { count } from "./numbers.js";

const JSON_FIELDS = ["schema", "tools"];

/** What is wrong with a text that shall be JSON; empty where nothing is. */
function complain(text) {
  try {
    if (text) JSON.parse(text);
    return "";
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
}

/** An answer as the conversation has it. */
function message({ text, calls }) {
  return calls.length ? { role: "assistant", content: text, tool_calls: calls } : { role: "assistant", content: text };
}

/** Nodes of what was said, and of the tools that were called. */
function write({ content, tool_calls: calls = [] }) {
  const page = render(content);
  for (const { function: called } of calls) page.append(render(`\`\`\`call\n${called.name}(${called.arguments})`));
  return page;
}

class Chat {
  constructor() {
    this.key = new Key(() => this.name());
    this.conversation = new Conversation();
    this.stopper = null;
    for (const name of ["talk", "prompt", "form", "note", "stop", "send", "new", "retry", "model", "settings"]) {
      this[name] = document.getElementById(name);
    }
    this.usual = this.prompt.placeholder;
    this.wire();
    for (const turn of this.conversation.turns) this.show(turn.role).replaceChildren(write(turn));
    if (this.conversation.refused) this.refuse();
    this.busy(null);
    this.name();
  }

  wire() {
    this.form.addEventListener("submit", (event) => this.submit(event));
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) this.submit(event);
    });
    this.stop.addEventListener("click", () => this.stopper?.abort());
    this.new.addEventListener("click", () => this.begin());
    this.retry.addEventListener("click", () => this.again());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.stopper?.abort());
    for (const field of this.settings.querySelectorAll("[name]")) {
      field.value = this.conversation.settings[field.name] ?? "";
      field.addEventListener("change", () => {
        this.check(field);
        this.conversation.settings[field.name] = field.value;
        this.conversation.keep();
      });
      this.check(field);
      field.addEventListener("invalid", () => (this.settings.open = true)); // or the browser could not show which
    }
  }

  /** Say beside a field that shall be JSON why it is none. */
  check(field) {
    if (!JSON_FIELDS.includes(field.name)) return;
    const fault = complain(field.value);
    field.setCustomValidity(fault);
    document.getElementById(`${field.name}-fault`).textContent = fault;
  }

  /** Show which model answers. */
  async name() {
    const response = await fetch("v1/models", { headers: this.key.headers() });
    if (response.status === 401) return this.key.ask("The server wants an API key. It stays in this tab.");
    this.model.textContent = (await response.json()).data[0].id;
    document.title = `${this.model.textContent} · Lengthwise`;
  }

  begin() {
    this.stopper?.abort();
    this.busy(null);
    this.conversation.clear();
    this.talk.replaceChildren();
    this.note.textContent = "";
    this.busy(null);
    this.prompt.focus();
  }

  submit(event) {
    event.preventDefault();
    const text = this.prompt.value.trim();
    if (!text || this.stopper || !this.form.reportValidity()) return;
    this.prompt.value = "";
    for (const button of this.talk.querySelectorAll(".keep")) button.remove();
    if (!this.conversation.openCall()) this.conversation.dropUnanswered();
    const call = this.conversation.openCall();
    const turn = call ? { role: "tool", tool_call_id: call.id, content: text } : { role: "user", content: text };
    this.conversation.add(turn);
    this.show(turn.role).replaceChildren(write(turn));
    if (this.conversation.openCall()) this.busy(null);
    else this.ask();
  }

  again() {
    if (!this.form.reportValidity()) return;
    while (this.talk.lastElementChild?.matches(".assistant, .pair")) this.talk.lastElementChild.remove();
    if (this.conversation.takeBack()) this.ask();
  }

  /** Ask for the next answer, or for two beside each other, of which the first stays unless the user keeps the other. */
  async ask() {
    const stopper = new AbortController();
    const turns = this.conversation.turns; // that are answered; the user may have begun anew by the end
    const current = () => turns === this.conversation.turns;
    let answers = [];
    if (this.prompt.value === this.conversation.unanswered()) this.prompt.value = "";
    this.conversation.refuse("");
    this.busy(stopper);
    try {
      const bodies = this.conversation.bodies();
      const place = bodies.length > 1 ? this.pair() : this.talk;
      answers = bodies.map(() => ({ place, text: "", calls: [], pieces: 0, began: performance.now(), first: 0, drawn: false }));
      for (const answer of answers) this.tell(answer, "Sent.", answers);
      await Promise.all(bodies.map((body, one) => complete(body, {
        key: this.key,
        signal: stopper.signal,
        wait: (words) => this.tell(answers[one], words, answers),
        take: (chunk) => this.take(chunk, answers[one], answers),
      })));
      this.finish(answers, current());
    } catch (error) {
      const stopped = stopper.signal.aborted;
      stopper.abort(); // the other one too
      this.finish(answers, current());
      if (current()) this.fail(error, stopped);
    } finally {
      if (this.stopper === stopper) this.busy(null);
    }
  }

  /** What was answered becomes part of the conversation. */
  finish(answers, current) {
    for (const answer of answers) answer.element?.parentElement.classList.remove("busy");
    const whole = answers.filter((answer) => answer.element);
    if (!current || !whole.length) return;
    for (const answer of whole) answer.element.replaceChildren(write(message(answer)));
    this.conversation.add(message(whole[0]));
    if (whole.length < 2) return;
    const at = this.conversation.turns.length - 1;
    const keep = (answer) => {
      this.conversation.turns[at] = message(answer);
      this.conversation.keep();
      for (const one of whole) one.element.parentElement.classList.toggle("kept", one === answer);
      this.busy(null);
    };
    for (const answer of whole) {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "keep", textContent: "Continue with this one" });
      button.addEventListener("click", () => keep(answer));
      answer.element.after(button);
    }
    keep(whole[0]);
  }

  /** Words on an answer, beside those on the other. */
  tell(answer, words, answers) {
    answer.words = words;
    this.note.textContent = answers.map((one) => one.words).join(" | ");
  }

  take(chunk, answer, answers) {
    const now = performance.now();
    const { content, tool_calls: calls = [] } = chunk.choices[0]?.delta ?? {};
    if (content || calls.length) {
      answer.element ??= this.show("assistant", "busy", answer.place);
      answer.first ||= now;
      answer.text += content ?? "";
      answer.pieces += 1;
      for (const { index, id, function: named } of calls) {
        const call = (answer.calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } });
        call.function.name += named.name ?? "";
        call.function.arguments += named.arguments ?? "";
      }
      const speed = (answer.pieces - 1) / ((now - answer.first) / 1000);
      this.tell(answer, answer.pieces > 4 ? `Answering, ${count(speed)} tokens/s.` : "Answering.", answers);
      this.draw(answer);
    }
    if (chunk.usage) this.tell(answer, summarize(chunk, (now - answer.began) / 1000), answers);
  }

  /** Once a frame, however many pieces come; and the end stays in view if it was. */
  draw(answer) {
    if (answer.drawn) return;
    answer.drawn = true;
    requestAnimationFrame(() => {
      answer.drawn = false;
      const below = this.talk.scrollHeight - this.talk.scrollTop - this.talk.clientHeight;
      answer.element.replaceChildren(write(message(answer)));
      if (below < 60) this.talk.scrollTop = this.talk.scrollHeight;
    });
  }

  /** A place for answers beside each other. */
  pair() {
    const place = document.createElement("div");
    place.className = "pair";
    this.talk.append(place);
    return place;
  }

  /** An empty place for what a role says; returns the element of its text. */
  show(role, state = "", place = this.talk) {
    const said = document.createElement("div");
    said.className = `turn ${role === "tool" ? "user" : role} ${state}`;
    const body = document.createElement("div");
    said.append(body);
    place.append(said);
    this.talk.scrollTop = this.talk.scrollHeight;
    return body;
  }

  fail(error, stopped) {
    this.note.textContent = stopped ? "Stopped; the server was told." : "";
    if (stopped) return;
    this.conversation.refuse(error.message);
    this.refuse();
  }

  /** Say why there is no answer, and offer the message to be changed. */
  refuse() {
    this.show("assistant", "failed").append(this.conversation.refused);
    if (this.prompt.value) return;
    this.prompt.value = this.conversation.unanswered();
    this.prompt.select(); // so that another message replaces it
  }

  busy(stopper) {
    this.stopper = stopper;
    this.stop.disabled = !stopper;
    this.send.disabled = Boolean(stopper);
    this.retry.disabled = Boolean(stopper) || !this.conversation.turns.length;
    const call = this.conversation.openCall(!stopper); // where no answer came, the next message replaces the results
    this.prompt.placeholder = call ? `The result of ${call.function.name}(${call.function.arguments})` : this.usual;
  }
}

new Chat();
