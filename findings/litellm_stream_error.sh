#!/usr/bin/env bash
# litellm 1.110.2 takes every error inside a stream for a broken connection: `{"error": {..., "code": 400}}`, which as an
# answer with status 400 is a BadRequestError, becomes a MidStreamFallbackError with status 500. Its Router, which asks
# once where the status is 400, asks `num_retries` times more where the same error is a stream's first event.
# Exits 0 while that is so, 1 when it changes. Wants Python 3.11; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check litellm==1.110.2 2> "$work/pip"

cat > "$work/server.py" <<'PY'
"""Chats that cannot be answered: as a status, or as the first event of a stream."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ERROR = {"message": "max_tokens is too large", "type": "invalid_request_error", "param": "max_tokens", "code": 400}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        way = self.path.split("/")[1]
        print(way, file=sys.stderr, flush=True)
        body = json.dumps({"error": ERROR})
        status, kind = 400, "application/json"
        if way.startswith("event"):
            status, kind, body = 200, "text/event-stream", f"data: {body}\n\ndata: [DONE]\n\n"
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
cat > "$work/ask.py" <<'PY'
"""The same error in both ways, to litellm's function and to its Router; the paths count the calls."""
import logging
import sys
from importlib.metadata import version

import litellm

logging.disable(logging.CRITICAL)
litellm.suppress_debug_info = True
print("litellm", version("litellm"))
PORT, LOG = sys.argv[1:]
MESSAGES = [{"role": "user", "content": "Hi"}]


def function(url):
    return litellm.completion("openai/m", messages=MESSAGES, stream=True, api_base=url, api_key="none", max_retries=0)


def router(url):
    backend = {"model": "openai/m", "api_base": url, "api_key": "none"}
    models = [{"model_name": "m", "litellm_params": backend}]
    return litellm.Router(model_list=models, num_retries=2).completion("m", messages=MESSAGES, stream=True)


def outcome(call, way):
    name = f"{way}-{call.__name__}"
    try:
        for _ in call(f"http://127.0.0.1:{PORT}/{name}/v1"):
            pass
        raised, status = "nothing", 200
    except Exception as error:
        raised, status = type(error).__name__, error.status_code
    calls = open(LOG).read().split().count(name)
    print(f"400 as {way}: {call.__name__} raises {raised} with status {status} after {calls} calls")
    return raised, status, calls


refused = outcome(function, "status") == outcome(router, "status") == ("BadRequestError", 400, 1)
broken = outcome(function, "event") == ("MidStreamFallbackError", 500, 1)
again = outcome(router, "event")[1:] == (500, 3)
sys.exit(0 if refused and broken and again else 1)
PY
python3 "$work/server.py" > "$work/port" 2> "$work/log" & server=$!
until [ -s "$work/port" ]; do sleep 0.1; done
LITELLM_LOCAL_MODEL_COST_MAP=True "$work/venv/bin/python" "$work/ask.py" "$(cat "$work/port")" "$work/log"
