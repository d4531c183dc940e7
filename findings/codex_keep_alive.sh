#!/usr/bin/env bash
# Codex CLI 0.171.0 counts events, not bytes, towards `stream_idle_timeout_ms`: a server that keeps a waiting stream open
# with comments, as the SSE standard advises, is broken off and asked again; one that repeats an event is waited for.
# Exits 0 while that is so, 1 when it changes. Wants Node.js 20 and npm; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" @openai/codex@0.171.0
codex=$work/node_modules/.bin/codex
"$codex" --version

cat > "$work/server.py" <<'PY'
"""The Responses API of a server whose answer begins after eight seconds, with something every second until then."""
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CALLS = {"comment": 0, "event": 0}
FILLERS = {"comment": b": waiting\n\n", "event": None}


def event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        way = self.path.split("/")[1]
        CALLS[way] += 1
        print(way, "call", CALLS[way], file=sys.stderr, flush=True)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        response = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
        try:
            self.put(event("response.created", response=response))
            for _ in range(8):
                time.sleep(1)
                self.put(FILLERS[way] or event("response.in_progress", response=response))
            item = {
                "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "done", "annotations": []}],
            }
            usage = {
                "input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1,
                "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2,
            }
            self.put(event("response.output_item.done", output_index=0, item=item))
            self.put(event("response.completed", response={**response, "status": "completed", "output": [item], "usage": usage}))
        except OSError:
            print(way, "broken off", file=sys.stderr, flush=True)
        self.close_connection = True

    def put(self, data):
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PY
python3 "$work/server.py" > "$work/port" 2> "$work/log" & server=$!
until [ -s "$work/port" ]; do sleep 0.1; done

ask() { # the way in which the server fills the wait
  mkdir -p "$work/$1"
  cat > "$work/$1/config.toml" <<TOML
model = "m"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "http://127.0.0.1:$(cat "$work/port")/$1/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 1
stream_idle_timeout_ms = 4000
TOML
  (cd "$work/$1" && CODEX_HOME=$work/$1 timeout 100 "$codex" exec --skip-git-repo-check "Say done" < /dev/null > out 2> err) || true
}
ask comment
ask event
cat "$work/log"
comments=$(grep -c '^comment call' "$work/log"); events=$(grep -c '^event call' "$work/log")
grep -ho 'idle timeout[^"]*' "$work/comment/out" "$work/comment/err" | sort | uniq -c || true
echo "calls for one answer: $comments behind comments, $events behind events; answered: $(grep -c '^done$' "$work/comment/out" || true), $(grep -c '^done$' "$work/event/out" || true)"
[ "$comments" = 2 ] && [ "$events" = 1 ] && grep -q '^done$' "$work/event/out" && ! grep -q '^done$' "$work/comment/out"
