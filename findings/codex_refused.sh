#!/usr/bin/env bash
# Codex CLI 0.171.0 asks again after a 429 only where the answer has `Retry-After`; without it one refused call ends the
# run, whatever `request_max_retries` says, while a 503 without it is asked again.
# Exits 0 while that is so, 1 when it changes. Wants Node.js 20 and npm; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" @openai/codex@0.171.0
codex=$work/node_modules/.bin/codex
"$codex" --version

cat > "$work/server.py" <<'PY'
"""The Responses API of a server that is full: each path says how it refuses."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REFUSALS = {"bare": (429, {}), "later": (429, {"Retry-After": "1"}), "down": (503, {})}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        way = self.path.split("/")[1]
        print(way, file=sys.stderr, flush=True)
        status, headers = REFUSALS[way]
        body = json.dumps({"error": {"message": "the queue is full", "type": "rate_limit", "code": "full"}}).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
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

for way in bare later down; do
  mkdir -p "$work/$way"
  cat > "$work/$way/config.toml" <<TOML
model = "m"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "http://127.0.0.1:$(cat "$work/port")/$way/v1"
wire_api = "responses"
request_max_retries = 2
stream_max_retries = 2
TOML
  (cd "$work/$way" && CODEX_HOME=$work/$way timeout 60 "$codex" exec --skip-git-repo-check "Say done" < /dev/null > out 2>&1) || true
  echo "$way: $(grep -c "^$way$" "$work/log") calls; $(grep -h '^ERROR' "$work/$way/out" | tail -1 | cut -c1-120)"
done
[ "$(grep -c '^bare$' "$work/log")" = 1 ] && [ "$(grep -c '^later$' "$work/log")" -gt 1 ] && [ "$(grep -c '^down$' "$work/log")" -gt 1 ]
