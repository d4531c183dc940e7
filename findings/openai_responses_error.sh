#!/usr/bin/env bash
# The Responses API has the events `error` and `response.failed`, but OpenAI's own clients raise neither: streams from
# `responses.create` of openai-python 3.57.0 and of openai-node 6.49.0 hand them over as one event more and end well, so
# that a loop which joins the text deltas takes half an answer for the answer. An object `{"error": ...}`, which is no
# event of that API, raises in both. openai-python's `responses.stream()` raises for all three, but without the server's
# message for the two events.
# Exits 0 while that is so, 1 when it changes. Wants Python 3.11, Node.js 20 and npm; everything else goes into a
# temporary folder.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check openai==3.57.0 2> "$work/pip"
npm install --silent --no-audit --no-fund --prefix "$work" openai@6.49.0

cat > "$work/server.py" <<'PY'
"""The Responses API of a server that fails after the first word: each path says how it tells."""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RESPONSE = {"id": "resp_1", "object": "response", "created_at": 0, "model": "m", "status": "in_progress", "output": []}
FAILURE = {"code": "server_error", "message": "the disk is full", "param": None}
DELTA = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "Half", "logprobs": []}
ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
PART = {"type": "output_text", "text": "", "annotations": []}
BEGIN = [
    {"type": "response.created", "response": RESPONSE},
    {"type": "response.output_item.added", "output_index": 0, "item": ITEM},
    {"type": "response.content_part.added", "item_id": "msg_1", "output_index": 0, "content_index": 0, "part": PART},
    {"type": "response.output_text.delta", **DELTA},
]
ENDS = {
    "event": {"type": "error", **FAILURE},
    "failed": {"type": "response.failed", "response": {**RESPONSE, "status": "failed", "error": FAILURE}},
    "object": {"error": {"type": "server_error", **FAILURE}},
}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        end = ENDS[self.path.split("/")[1]]
        body = ""
        for number, one in enumerate([*BEGIN, end]):
            name = f"event: {one['type']}\n" if "type" in one else ""
            body += f"{name}data: {json.dumps({**one, 'sequence_number': number} if name else one)}\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PY
cat > "$work/ask.py" <<'PY'
"""Both ways to stream a response, behind both ways to tell of a failure."""
import sys

import openai

print("openai-python", openai.__version__)


def create(client):
    text = ""
    for event in client.responses.create(model="m", input="Hi", stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
    return text


def stream(client):
    with client.responses.stream(model="m", input="Hi") as events:
        for _ in events:
            pass
        return events.get_final_response().output_text


def outcome(call, path):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/{path}/v1", api_key="none", max_retries=0)
    try:
        return f"returns {call(client)!r}"
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"


seen = {(call.__name__, path): outcome(call, path) for path in ("event", "failed", "object") for call in (create, stream)}
for (call, path), what in seen.items():
    print(f"  {path}: responses.{call}() {what}")
told = "raises APIError: the disk is full"
same = seen["create", "object"] == seen["stream", "object"] == told
for path in ("event", "failed"):
    hidden = seen["stream", path]
    same &= seen["create", path] == "returns 'Half'" and hidden.startswith("raises RuntimeError") and "disk" not in hidden
sys.exit(0 if same else 1)
PY
cat > "$work/ask.mjs" <<'JS'
import OpenAI from 'openai';
import { VERSION } from 'openai/version';

console.log('openai-node', VERSION);
const seen = {};
for (const path of ['event', 'failed', 'object']) {
  const client = new OpenAI({ baseURL: `http://127.0.0.1:${process.argv[2]}/${path}/v1`, apiKey: 'none', maxRetries: 0 });
  let text = '';
  try {
    for await (const event of await client.responses.create({ model: 'm', input: 'Hi', stream: true }))
      if (event.type === 'response.output_text.delta') text += event.delta;
    seen[path] = `returns '${text}'`;
  } catch (error) {
    seen[path] = `raises ${error.constructor.name}: ${error.message}`;
  }
  console.log(`  ${path}: responses.create() ${seen[path]}`);
}
process.exit(seen.event === "returns 'Half'" && seen.failed === seen.event && seen.object === 'raises APIError: the disk is full' ? 0 : 1);
JS
python3 "$work/server.py" > "$work/port" & server=$!
until [ -s "$work/port" ]; do sleep 0.1; done
"$work/venv/bin/python" "$work/ask.py" "$(cat "$work/port")"
node "$work/ask.mjs" "$(cat "$work/port")"
