#!/usr/bin/env bash
# Codex CLI 0.171.0 does not read the Responses API's event `error`, flat as documented or with an object in `error`, nor
# an object `{"error": ...}` without a type: at the stream's end it misses `response.completed`, asks again as after a
# broken connection, and shows no message. Of `response.failed` it reads the code: of those below `invalid_prompt` alone
# ends the run at once with the server's message, `insufficient_quota` and `server_is_overloaded` do so with Codex' own
# words, and the others are asked again.
# Exits 0 while that is so, 1 when it changes. Wants Node.js 20 and npm; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" @openai/codex@0.171.0
codex=$work/node_modules/.bin/codex
"$codex" --version

cat > "$work/server.py" <<'PY'
"""The Responses API of a server that fails once its stream has begun: each path says how it tells."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MESSAGE = "the seventh word is not allowed"
RESPONSE = {"id": "resp_1", "object": "response", "created_at": 0, "model": "m", "status": "in_progress", "output": []}
ERROR = {"code": "invalid_prompt", "message": MESSAGE, "param": None}
ERRORS = {
    "flat": {"type": "error", **ERROR},
    "nested": {"type": "error", "error": {"type": "invalid_request_error", **ERROR}},
    "untyped": {"error": {"type": "invalid_request_error", **ERROR}},
}


def failed(code):
    return {"type": "response.failed", "response": {**RESPONSE, "status": "failed", "error": {"code": code, "message": MESSAGE}}}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        way = self.path.split("/")[1]
        print(way, file=sys.stderr, flush=True)
        events = [{"type": "response.created", "response": RESPONSE}, ERRORS.get(way) or failed(way)]
        body = b""
        for one in events:
            name = f"event: {one['type']}\n" if "type" in one else ""
            body += f"{name}data: {json.dumps(one)}\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PY
python3 "$work/server.py" > "$work/port" 2> "$work/log" & server=$!
until [ -s "$work/port" ]; do sleep 0.1; done

calls() { # those that the server got for one prompt
  grep -c "^$1$" "$work/log"
}
shown() {
  grep -h '^ERROR' "$work/$1/out" | tail -1
}
ask() { # the event that ends the stream, or the code of a response.failed
  mkdir -p "$work/$1"
  cat > "$work/$1/config.toml" <<TOML
model = "m"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "http://127.0.0.1:$(cat "$work/port")/$1/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 2
TOML
  (cd "$work/$1" && CODEX_HOME=$work/$1 timeout 30 "$codex" exec --skip-git-repo-check "Say done" < /dev/null > out 2>&1) || true
  echo "$1: $(calls "$1") calls; $(shown "$1" | cut -c1-100)"
}
changed=0
for way in flat nested untyped; do
  ask $way
  [ "$(calls $way)" = 3 ] && ! grep -q 'seventh word' "$work/$way/out" || changed=1
done
for code in server_error invalid_request rate_limit_exceeded; do
  ask $code
  [ "$(calls $code)" = 3 ] || changed=1
done
for code in insufficient_quota server_is_overloaded; do
  ask $code
  [ "$(calls $code)" = 1 ] && ! grep -q 'seventh word' "$work/$code/out" || changed=1
done
ask invalid_prompt
[ "$(calls invalid_prompt)" = 1 ] && [ "$(shown invalid_prompt)" = "ERROR: the seventh word is not allowed" ] || changed=1
exit $changed
