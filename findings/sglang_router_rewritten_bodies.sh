#!/usr/bin/env bash
# sglang-router 0.3.2 does not pass a chat's body on: it sends what it knows of it, under names of its own. `max_tokens`
# arrives as `max_completion_tokens`, which a worker that knows only the older name takes for no limit; `user`,
# `cache_salt`, `priority` and `store` do not arrive (`prompt_cache_key` and `metadata` do), and no header says so.
# Exits 0 while that is so, 1 when it changes. Wants Python 3.11; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
router= worker=
trap 'kill $router $worker 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check sglang-router==0.3.2 2> "$work/pip"
"$work/venv/bin/pip" list --disable-pip-version-check 2>/dev/null | grep -i '^sglang.router '

cat > "$work/worker.py" <<'PY'
"""A worker that answers a chat with the body that it got."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.put({"model_path": "m", "is_generation": True, "data": [{"id": "m", "object": "model"}]})

    def do_POST(self):
        got = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": json.dumps(got)}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        self.put({"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": choices})

    def put(self, reply):
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
PY
cat > "$work/ask.py" <<'PY'
"""One chat with fields that OpenAI, vLLM and SGLang document, and which of them came through."""
import json
import sys
import time
import urllib.error
import urllib.request

FIELDS = {
    "max_tokens": 5, "user": "somebody", "seed": 3, "stop": ["x"], "temperature": 0.5, "top_p": 0.9, "n": 1,
    "presence_penalty": 0.1, "frequency_penalty": 0.1, "logit_bias": {"5": 1.0}, "metadata": {"a": "b"}, "store": False,
    "prompt_cache_key": "k", "safety_identifier": "s", "service_tier": "auto", "priority": 1, "cache_salt": "s",
    "top_k": 4, "min_p": 0.1, "min_tokens": 1, "repetition_penalty": 1.1, "stop_token_ids": [7], "ignore_eos": False,
    "chat_template_kwargs": {"enable_thinking": False},
}
body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **FIELDS}
call = urllib.request.Request(
    f"http://127.0.0.1:{sys.argv[1]}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
for _ in range(300):
    try:
        with urllib.request.urlopen(call, timeout=10) as answer:
            got, headers = json.load(answer), list(answer.headers)
            break
    except urllib.error.URLError:
        time.sleep(0.2)
else:
    sys.exit("the router never answered")
got = json.loads(got["choices"][0]["message"]["content"])
gone = sorted(name for name in FIELDS if name not in got)
print("not passed on:", *gone)
print("changed:", {name: got[name] for name in FIELDS if name in got and got[name] != FIELDS[name]})
print("new:", {name: value for name, value in got.items() if name not in body})
print("headers:", headers)
sys.exit(0 if {"max_tokens", "user", "cache_salt", "priority", "store"} == set(gone) and got["max_completion_tokens"] == 5 else 1)
PY
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
one=$(free) two=$(free)
python3 "$work/worker.py" "$one" & worker=$!
"$work/venv/bin/python" -m sglang_router.launch_router --host 127.0.0.1 --port "$two" --worker-urls "http://127.0.0.1:$one" \
  > "$work/log" 2>&1 & router=$!
"$work/venv/bin/python" "$work/ask.py" "$two"
