// The server's feed: connects, connects again when it is lost, and tells what comes.

import { read } from "./sse.js";

const SOON = 500;
const LATE = 8000;

export class Feed {
  /** `told` has hello(data), tick(data) and link(state, text). */
  constructor(key, told) {
    this.key = key;
    this.told = told;
    this.delay = SOON;
    this.again = () => {};
  }

  /** Runs for as long as the page is there. */
  async run() {
    for (;;) {
      const wait = await this.connect();
      await new Promise((resolve) => {
        this.again = resolve;
        if (wait) setTimeout(resolve, this.delay);
      });
      this.delay = Math.min(LATE, this.delay * 2);
    }
  }

  /** Try again at once. */
  retry() {
    this.delay = SOON;
    this.again();
  }

  /** One connection, to its end; false where only the user can help. */
  async connect() {
    this.told.link("connecting", "connecting");
    try {
      const response = await fetch("dashboard/events", { headers: this.key.headers(), cache: "no-store" });
      if (response.status === 401 || response.status === 403) {
        this.told.link("lost", "needs an API key");
        this.key.ask("The server wants an API key. It stays in this tab.");
        return false;
      }
      if (!response.ok) throw new Error(`status ${response.status}`);
      await this.listen(response);
      this.told.link("lost", "connection lost");
    } catch (error) {
      this.told.link("lost", error instanceof TypeError ? "no connection" : error.message);
    }
    return true;
  }

  async listen(response) {
    for await (const event of read(response)) {
      if (event.name === "hello") {
        this.delay = SOON;
        this.told.link("live", "live");
        this.told.hello(JSON.parse(event.data));
      } else if (event.name === "tick") this.told.tick(JSON.parse(event.data));
    }
  }
}
