// Clients, and the part of the service that each had lately; hidden while there is only one.

import { count, percent } from "./numbers.js";
import { fill } from "./table.js";

const LATELY = 60; // seconds

export class Clients {
  constructor() {
    this.card = document.getElementById("clients");
    this.body = this.card.querySelector("tbody");
    this.past = [];
  }

  tick(tick) {
    this.card.hidden = !tick.clients.length;
    this.past.push({ t: tick.t, service: new Map(tick.clients.map(([name, , , service]) => [name, service])) });
    while (this.past[0].t < tick.t - LATELY) this.past.shift();
    const before = this.past[0].service;
    const lately = tick.clients.map(([name, , , service]) => service - (before.get(name) ?? 0));
    const all = lately.reduce((sum, one) => sum + one, 0);
    fill(
      this.body,
      tick.clients.map(([name, waiting, running], place) => [name || "all others", count(waiting), count(running), percent(lately[place] / all)]),
    );
  }
}
