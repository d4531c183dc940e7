#!/usr/bin/env bash
# To openai-python 3.57.0 and openai-node 7.59.0 an answer of `application/json` to a call that asked for a stream is a
# stream without events: nothing is yielded and nothing raised, for a chat, a new response and a stored one. A server that
# overlooks `stream`, as of `GET /v1/responses/{id}?stream=true`, looks to a program as if the model had said nothing.
# Exits 0 while that is so, 1 when it changes. Wants Python 3.11 and Node.js; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check openai==3.57.0 2> "$work/pip"
"$work/venv/bin/pip" list --disable-pip-version-check 2>/dev/null | grep '^openai '
npm install --silent --no-audit --no-fund --prefix "$work" openai@7.59.0
npm ls --prefix "$work" openai | grep openai@

cat > "$work/server.py" <<'PY'
"""Whole answers as JSON, whatever was asked for."""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEXT = {"type": "output_text", "text": "Paris", "annotations": []}
MESSAGE = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [TEXT]}
RESPONSE = {"id": "resp_1", "object": "response", "created_at": 0, "status": "completed", "model": "m", "output": [MESSAGE],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}
CHAT = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [CHOICE]}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self):
        data = json.dumps(CHAT if self.path.endswith("completions") else RESPONSE).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PY
cat > "$work/ask.py" <<'PY'
"""How many events each call yields."""
import sys

import openai

client = openai.OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/v1", api_key="none")
calls = {
    "chat": lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}], stream=True),
    "response": lambda: client.responses.create(model="m", input="?", stream=True),
    "stored response": lambda: client.responses.retrieve("resp_1", stream=True),
}
for name, call in calls.items():
    print(f"python, {name}: {len(list(call()))} events")
PY
cat > "$work/ask.mjs" <<'JS'
// How many events each call yields.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `http://127.0.0.1:${process.argv[2]}/v1`, apiKey: "none" });
const calls = {
  chat: () => client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "?" }], stream: true }),
  response: () => client.responses.create({ model: "m", input: "?", stream: true }),
  "stored response": () => client.responses.retrieve("resp_1", { stream: true }),
};
for (const [name, call] of Object.entries(calls)) {
  let events = 0;
  for await (const _ of await call()) events++;
  console.log(`node, ${name}: ${events} events`);
}
JS
python3 "$work/server.py" > "$work/port" & server=$!
until [ -s "$work/port" ]; do sleep 0.1; done
port=$(cat "$work/port")
{ "$work/venv/bin/python" "$work/ask.py" "$port" && node "$work/ask.mjs" "$port"; } | tee "$work/seen"
[ "$(grep -c ': 0 events$' "$work/seen")" = 6 ]
