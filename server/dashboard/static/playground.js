// A conversation with the model, streamed; several answers at once, to see rows join the batch together.

import { complete, summarize } from "./completion.js";

export class Playground {
  constructor(key) {
    this.key = key;
    this.model = undefined;
    this.said = [];
    this.stopper = null;
    for (const name of ["talk", "prompt", "play", "play-note", "play-stop", "play-send", "play-new", "play-tokens", "play-heat", "play-count"]) {
      this[name.replace("play-", "")] = document.getElementById(name);
    }
    this.play.addEventListener("submit", (event) => this.submit(event));
    this.stop.addEventListener("click", () => this.halt());
    this.new.addEventListener("click", () => this.begin());
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) this.submit(event);
    });
  }

  /** Forget the conversation, and break off an answer that belongs to it. */
  begin() {
    this.halt();
    this.busy(null);
    this.said = [];
    this.talk.replaceChildren();
    this.note.textContent = "";
    this.prompt.focus();
  }

  halt() {
    this.stopper?.abort();
  }

  submit(event) {
    event.preventDefault();
    const text = this.prompt.value.trim();
    if (!text || this.stopper || !this.play.reportValidity()) return;
    this.prompt.value = "";
    this.said.push({ role: "user", content: text });
    this.bubble("user", "you").append(text);
    this.ask();
  }

  async ask() {
    const stopper = new AbortController();
    const answers = [];
    const said = this.said; // the conversation that is answered; the user may have begun another by the end
    this.busy(stopper);
    this.began = performance.now();
    this.note.textContent = "Sent.";
    try {
      await this.stream(answers, stopper.signal);
    } catch (error) {
      if (said === this.said) this.fail(error, answers, stopper.signal.aborted);
    } finally {
      for (const answer of answers) answer.bubble.classList.remove("busy");
      if (answers[0]?.text) said.push({ role: "assistant", content: answers[0].text });
      else said.pop();
      if (this.stopper === stopper) this.busy(null);
    }
  }

  busy(stopper) {
    this.stopper = stopper;
    this.stop.disabled = !stopper;
    this.send.disabled = Boolean(stopper);
  }

  stream(answers, signal) {
    const body = {
      model: this.model,
      messages: this.said,
      max_tokens: this.tokens.valueAsNumber,
      temperature: this.heat.valueAsNumber,
      n: this.count.valueAsNumber,
    };
    const wait = (words) => (this.note.textContent = words);
    return complete(body, { key: this.key, signal, wait, take: (chunk) => this.take(chunk, answers) });
  }

  take(chunk, answers) {
    for (const choice of chunk.choices) {
      const answer = (answers[choice.index] ??= this.answer(choice.index));
      const text = choice.delta.content ?? "";
      if (!answer.text && text) this.note.textContent = "Answering.";
      answer.text += text;
      answer.body.append(text);
      if (choice.finish_reason) answer.bubble.classList.remove("busy");
    }
    if (chunk.usage) this.note.textContent = summarize(chunk, (performance.now() - this.began) / 1000);
    this.talk.scrollTop = this.talk.scrollHeight;
  }

  answer(index) {
    const bubble = this.bubble("assistant", this.count.valueAsNumber > 1 ? `answer ${index + 1}` : "answer");
    bubble.classList.add("busy");
    const body = document.createElement("span");
    bubble.append(body);
    return { bubble, body, text: "" };
  }

  bubble(role, name) {
    const bubble = document.createElement("div");
    bubble.className = `said ${role}`;
    const who = document.createElement("span");
    who.className = "who";
    who.textContent = name;
    bubble.append(who);
    this.talk.append(bubble);
    this.talk.scrollTop = this.talk.scrollHeight;
    return bubble;
  }

  fail(error, answers, stopped) {
    if (stopped) {
      this.note.textContent = "Stopped; the server was told.";
      return;
    }
    this.note.textContent = "";
    const bubble = answers.length ? answers[0].bubble : this.bubble("assistant", "error");
    bubble.classList.add("failed");
    bubble.append(`${answers.length ? "\n" : ""}${error.message}`);
  }
}
