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
    this.past.push({ t: tick.t, service: new Map(tick.clients.map(([name, , , service]) => [name, service])) });
    while (this.past[0].t < tick.t - LATELY) this.past.shift();
    const before = this.past[0].service;
    const lately = tick.clients.map(([name, , , service]) => service - (before.get(name) ?? 0));
    const all = lately.reduce((sum, one) => sum + one, 0);
    const lines = tick.clients.map(([name, waiting, running], place) => [name || "without a name", waiting, running, lately[place]]);
    const shown = lines.filter(([, ...numbers]) => numbers.some((one) => one > 0));
    this.card.hidden = shown.length < 2;
    fill(this.body, shown.map(([name, waiting, running, service]) => [name, count(waiting), count(running), percent(service / all)]));
  }
}
