// One call of the chat endpoint, streamed, and what it took in words.

import { count, seconds } from "./numbers.js";
import { read } from "./sse.js";

/** Passes each chunk to `take` and words on the place in line to `wait`; throws an Error in the server's words. */
export async function complete(body, { key, signal, wait, take }) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json", ...key.headers() },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true, include_progress: true } }),
  });
  if (response.status === 401) key.ask("The server wants an API key. It stays in this tab.");
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const event of read(response)) {
    if (event.comment !== undefined) wait(tellPlace(event.comment, response.headers));
    else if (event.data !== "[DONE]") {
      const chunk = JSON.parse(event.data);
      if (chunk.error) throw new Error(chunk.error.message);
      take(chunk);
    }
  }
}

/** While a request is queued, the server tells in comments how long that will be. */
function tellPlace(comment, headers) {
  const told = Object.fromEntries(comment.split(" ").map((part) => part.split("=")));
  const wait = told.expected_wait_s === undefined ? "" : `, about ${seconds(Number(told.expected_wait_s))}`;
  const by = headers.get("x-lengthwise-by");
  const share = Math.round(100 * headers.get("x-lengthwise-coverage"));
  const promise = by ? ` The answer by ${new Date(by).toLocaleTimeString()} (${share} %).` : "";
  return told.place === undefined ? comment : `Place ${told.place} in the queue${wait}.${promise}`;
}

/** What an answer took, from its last chunk and the seconds that passed here. */
export function summarize({ usage, metrics }, passed) {
  const parts = [`${count(usage.prompt_tokens)} tokens in, ${count(usage.completion_tokens)} out`];
  const first = metrics?.time_to_first_token_ms;
  if (typeof metrics?.predicted_tokens === "number") parts.push(`${count(metrics.predicted_tokens)} predicted`);
  if (typeof metrics?.queue_time_ms === "number") parts.push(`waited ${seconds(metrics.queue_time_ms / 1000)}`);
  if (typeof first === "number") {
    parts.push(`first token after ${seconds(first / 1000)}`);
    const generating = passed - first / 1000;
    if (usage.completion_tokens > 1 && generating > 0) parts.push(`${count((usage.completion_tokens - 1) / generating)} tokens/s`);
  }
  parts.push(`${seconds(passed)} in all`);
  return parts.join(" · ");
}
