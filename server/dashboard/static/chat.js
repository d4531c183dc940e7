// The page for conversations: shows what was said, asks for the next answer, stops it, asks again.

import { complete, summarize } from "./completion.js";
import { Conversation } from "./conversation.js";
import { Key } from "./key.js";
import { render } from "./markdown.js";
import { count } from "./numbers.js";

class Chat {
  constructor() {
    this.key = new Key(() => this.name());
    this.conversation = new Conversation();
    this.stopper = null;
    for (const name of ["talk", "prompt", "form", "note", "stop", "send", "new", "retry", "model", "settings"]) {
      this[name] = document.getElementById(name);
    }
    this.wire();
    for (const turn of this.conversation.turns) this.show(turn.role).replaceChildren(render(turn.content));
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
        this.conversation.settings[field.name] = field.value;
        this.conversation.keep();
      });
    }
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
    this.conversation.add("user", text);
    this.show("user").replaceChildren(render(text));
    this.ask();
  }

  again() {
    while (this.talk.lastElementChild?.matches(".assistant")) this.talk.lastElementChild.remove();
    if (this.conversation.takeBack()) this.ask();
  }

  async ask() {
    const stopper = new AbortController();
    const turns = this.conversation.turns; // that are answered; the user may have begun anew by the end
    const answer = { text: "", pieces: 0, began: performance.now(), first: 0, drawn: false };
    this.busy(stopper);
    this.note.textContent = "Sent.";
    const current = () => turns === this.conversation.turns;
    try {
      const wait = (words) => (this.note.textContent = words);
      await complete(this.conversation.body(), { key: this.key, signal: stopper.signal, wait, take: (chunk) => this.take(chunk, answer) });
    } catch (error) {
      if (current()) this.fail(error, stopper.signal.aborted);
    } finally {
      answer.element?.parentElement.classList.remove("busy");
      if (answer.text && current()) {
        this.conversation.add("assistant", answer.text);
        answer.element.replaceChildren(render(answer.text));
      }
      if (this.stopper === stopper) this.busy(null);
    }
  }

  take(chunk, answer) {
    const now = performance.now();
    const text = chunk.choices[0]?.delta.content;
    if (text) {
      answer.element ??= this.show("assistant", "busy");
      answer.first ||= now;
      answer.text += text;
      answer.pieces += 1;
      const speed = (answer.pieces - 1) / ((now - answer.first) / 1000);
      this.note.textContent = answer.pieces > 4 ? `Answering, ${count(speed)} tokens/s.` : "Answering.";
      this.draw(answer);
    }
    if (chunk.usage) this.note.textContent = summarize(chunk, (now - answer.began) / 1000);
  }

  /** Once a frame, however many pieces come; and the end stays in view if it was. */
  draw(answer) {
    if (answer.drawn) return;
    answer.drawn = true;
    requestAnimationFrame(() => {
      answer.drawn = false;
      const below = this.talk.scrollHeight - this.talk.scrollTop - this.talk.clientHeight;
      answer.element.replaceChildren(render(answer.text));
      if (below < 60) this.talk.scrollTop = this.talk.scrollHeight;
    });
  }

  /** An empty place for what a role says; returns the element of its text. */
  show(role, state = "") {
    const said = document.createElement("div");
    said.className = `turn ${role} ${state}`;
    const body = document.createElement("div");
    said.append(body);
    this.talk.append(said);
    this.talk.scrollTop = this.talk.scrollHeight;
    return body;
  }

  fail(error, stopped) {
    this.note.textContent = stopped ? "Stopped; the server was told." : "";
    if (!stopped) this.show("assistant", "failed").append(error.message);
  }

  busy(stopper) {
    this.stopper = stopper;
    this.stop.disabled = !stopper;
    this.send.disabled = Boolean(stopper);
    this.retry.disabled = Boolean(stopper) || !this.conversation.turns.length;
  }
}

new Chat();
