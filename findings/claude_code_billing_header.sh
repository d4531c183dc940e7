#!/usr/bin/env bash
# Claude Code 2.1.197 begins its system prompt with a part `x-anthropic-billing-header: cc_version=2.1.197.XXX; ...`,
# whose XXX follows from the first words said to it: a server that renders the part as it comes finds no prompt of one
# run, or of one subagent, in the prefix cache of another, though all behind it is the same.
# CLAUDE_CODE_ATTRIBUTION_HEADER=0 leaves the part out.
# Exits 0 while that is so, 1 when it changes. Wants Node.js 20 and npm; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" @anthropic-ai/claude-code@2.1.197
claude=$work/node_modules/.bin/claude
"$claude" --version

cat > "$work/server.py" <<'PY'
"""The Messages API of a server that says one word, and keeps the system prompts."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print(json.dumps([part["text"] for part in call["system"]]), file=sys.stderr, flush=True)
        start = {"id": "msg_1", "type": "message", "role": "assistant", "model": call["model"], "content": [],
                 "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
        events = [
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Done."}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]
        body = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events).encode()
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

export HOME=$work ANTHROPIC_BASE_URL=http://127.0.0.1:$(cat "$work/port") ANTHROPIC_API_KEY=none
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1
cd "$work"
timeout 60 "$claude" -p "Say hello to all of us." < /dev/null
timeout 60 "$claude" -p "Count to three, please." < /dev/null
CLAUDE_CODE_ATTRIBUTION_HEADER=0 timeout 60 "$claude" -p "Say hello to all of us." < /dev/null
python3 - "$work/log" <<'PY'
import json
import os
import sys

one, other, without = map(json.loads, open(sys.argv[1]))
print(one[0], other[0], f"then: {without[0]}", sep="\n")
for name, first, second in (("as it comes", one, other), ("without the part", one[1:], without)):
    same, whole = len(os.path.commonprefix(["".join(first), "".join(second)])), len("".join(first))
    print(f"{name}: the first {same} of {whole} characters are the same")
header = "x-anthropic-billing-header:"
sys.exit(0 if one[0].startswith(header) and one[0] != other[0] and one[1:] == other[1:] == without else 1)
PY
