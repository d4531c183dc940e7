#!/usr/bin/env bash
# A stream that stops without its end (`finish_reason` and `[DONE]` of a chat, `message_stop` of a message) is a whole
# answer to the clients that most programs use: openai-python 3.57.0, langchain-openai 1.7.4 and the `text_stream` of
# anthropic 2.14.0 end well with half of the text. HTTP has nothing wrong: its body is complete. A server that fails in
# the middle and only closes the stream is believed; an error has to be said.
# Exits 0 while that is so, 1 when it changes. Wants Python 3.11; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  openai==3.57.0 anthropic==2.14.0 langchain-openai==1.7.4 2> "$work/pip"
"$work/venv/bin/pip" list --disable-pip-version-check 2>/dev/null | grep -E '^(openai|anthropic|langchain-openai) '

cat > "$work/server.py" <<'PY'
"""Chats and messages that stop in the middle: under /said/ with an error, under /silent/ without."""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
           "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
STREAMS = {
    "messages": [
        {"type": "message_start", "message": MESSAGE},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Pay nobody"}},
    ],
    "completions": [
        {**CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Pay nobody"}, "finish_reason": None}]},
    ],
}
ERRORS = {
    "messages": {"type": "error", "error": {"type": "api_error", "message": "the disk is full"}},
    "completions": {"error": {"type": "server_error", "message": "the disk is full", "param": None, "code": None}},
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        api = self.path.split("/")[-1]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for one in STREAMS[api] + [ERRORS[api]] * self.path.startswith("/said/"):
            name = f"event: {one['type']}\n" if "type" in one else ""
            self.put(f"{name}data: {json.dumps(one)}\n\n".encode())
        self.put(b"")

    def put(self, data):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PY
cat > "$work/ask.py" <<'PY'
"""What each client makes of half an answer."""
import sys

import anthropic
import openai
from langchain_openai import ChatOpenAI

MESSAGES = [{"role": "user", "content": "Whom do I pay?"}]


def openai_chat(url):
    chunks = openai.OpenAI(base_url=f"{url}/v1", api_key="none").chat.completions.create(model="m", messages=MESSAGES, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def langchain(url):
    return "".join(chunk.text for chunk in ChatOpenAI(model="m", base_url=f"{url}/v1", api_key="none").stream("Whom do I pay?"))


def text_stream(url):
    with anthropic.Anthropic(base_url=url, api_key="none").messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream:
        return "".join(stream.text_stream)


def outcome(call, path):
    try:
        return f"returns {call(f'http://127.0.0.1:{sys.argv[1]}/{path}')!r}"
    except Exception as error:
        return f"raises {type(error).__name__}"


seen = {(path, call.__name__): outcome(call, path) for path in ("silent", "said") for call in (openai_chat, langchain, text_stream)}
for (path, call), what in seen.items():
    print(f"{path}: {call} {what}")
same = all((what == "returns 'Pay nobody'") == (path == "silent") for (path, _), what in seen.items())
sys.exit(0 if same else 1)
PY
python3 "$work/server.py" > "$work/port" & server=$!
until [ -s "$work/port" ]; do sleep 0.1; done
"$work/venv/bin/python" "$work/ask.py" "$(cat "$work/port")"
