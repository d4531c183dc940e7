#!/usr/bin/env bash
# Claude Code 2.1.197 answers an event `error`, wherever it is in the stream, with the same call without `stream`, at once
# and whatever the error's type: `invalid_request_error`, which as a status 400 ends the run after one call, costs two,
# the second without a sign of life before its answer. CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK=1 leaves it at one.
# Exits 0 while that is so, 1 when it changes. Wants Node.js 20 and npm; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" @anthropic-ai/claude-code@2.1.197
claude=$work/node_modules/.bin/claude
"$claude" --version

cat > "$work/server.py" <<'PY'
"""The Messages API of a server that refuses: as a status, or as an event of its stream, first or after a text."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ERROR = {"type": "error", "error": {"type": "invalid_request_error", "message": "the seventh word is not allowed"}}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
           "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
TEXT = [
    {"type": "message_start", "message": MESSAGE},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
]
EVENTS = {"first": [ERROR], "later": [*TEXT, ERROR], "no-fallback": [ERROR]}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        way = self.path.split("/")[1]
        print(way, "streamed" if call.get("stream") else "whole", file=sys.stderr, flush=True)
        status, kind, body = 400, "application/json", json.dumps(ERROR)
        if call.get("stream") and way in EVENTS:
            status, kind = 200, "text/event-stream"
            body = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in EVENTS[way])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PY
python3 "$work/server.py" > "$work/port" 2> "$work/log" & server=$!
until [ -s "$work/port" ]; do sleep 0.1; done

export HOME=$work ANTHROPIC_API_KEY=none CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1
cd "$work"
changed=0
ask() { # how the server refuses, and the calls that this brings
  ANTHROPIC_BASE_URL=http://127.0.0.1:$(cat port)/$1 timeout 60 "$claude" -p "Say hello." < /dev/null > out 2>&1 || true
  local calls
  calls=$(grep "^$1 " log | cut -d' ' -f2 | xargs)
  echo "$1: calls: $calls; $(head -1 out | cut -c1-100)"
  [ "$calls" = "$2" ] || changed=1
}
ask status "streamed"
ask first "streamed whole"
ask later "streamed whole"
CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK=1 ask no-fallback "streamed"
exit $changed
