// Server-sent events from a fetched response, with comments: EventSource can send neither a body nor a key.

/** Yields {name, data} for each event and {comment} for each comment line, until the response ends. */
export async function* read(response) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const frames = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) yield* parse(frame);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function* parse(frame) {
  let name = "message";
  const data = [];
  for (const line of frame.split("\n")) {
    if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
    else if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  if (data.length) yield { name, data: data.join("\n") };
}
