#!/usr/bin/env bash
# sglang-router 0.3.2 tells a worker at once that the client of a running stream has left, but not that of a stream of
# which no byte of the body has come yet: a call that waits in the worker's queue stays there and is served to nobody.
# Exits 0 while that is so, 1 when it changes. Wants Python 3.11; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
router= worker=
trap 'kill $router $worker 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check sglang-router==0.3.2 aiohttp==3.14.3 2> "$work/pip"
"$work/venv/bin/pip" list --disable-pip-version-check 2>/dev/null | grep -i '^sglang.router '

cat > "$work/worker.py" <<'PY'
"""A worker whose streams begin at once (`max_tokens` 1) or after ten seconds, and that says who has left when."""
import asyncio
import sys
import time

from aiohttp import web

left = {}


async def chat(request):
    call = await request.json()
    reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await reply.prepare(request)
    began, kind = time.monotonic(), "running" if call.get("max_completion_tokens", 1) == 1 else "waiting"
    try:
        for turn in range(100):
            if kind == "running" or turn == 99:
                await reply.write(b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n')
            await asyncio.sleep(0.1)
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError
    except (ConnectionResetError, asyncio.CancelledError):
        left[kind] = time.monotonic() - began
    return reply


async def told(request):
    return web.json_response(left)


async def ready(request):
    return web.json_response({"model_path": "m", "is_generation": True, "data": [{"id": "m", "object": "model"}]})


app = web.Application()
app.router.add_post("/v1/chat/completions", chat)
app.router.add_get("/left", told)
app.router.add_get("/{other:.*}", ready)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, handler_cancellation=True)
PY
cat > "$work/leave.py" <<'PY'
"""Two clients that leave after a second: one that was read to, one that waited; then what the worker noticed."""
import asyncio
import sys

import aiohttp

ROUTER, WORKER = sys.argv[1:]


# The router sends max_tokens on as max_completion_tokens, and no `user`.
async def leave(client, max_tokens):
    body = {"model": "m", "stream": True, "max_tokens": max_tokens, "messages": [{"role": "user", "content": "Hi"}]}
    try:
        async with asyncio.timeout(1):
            async with client.post(f"{ROUTER}/v1/chat/completions", json=body) as answer:
                async for _ in answer.content:
                    pass
    except TimeoutError:
        pass


async def main():
    async with aiohttp.ClientSession() as client:
        for _ in range(100):
            try:
                async with client.get(f"{ROUTER}/v1/models") as answer:
                    if answer.status == 200:
                        break
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)
    for max_tokens in (1, 2):
        async with aiohttp.ClientSession() as client:
            await leave(client, max_tokens)
    await asyncio.sleep(4)
    async with aiohttp.ClientSession() as client, client.get(f"{WORKER}/left") as answer:
        left = await answer.json()
    print("clients that left after 1 s; the worker saw, after seconds:", {kind: round(at, 1) for kind, at in left.items()})
    sys.exit(0 if "running" in left and "waiting" not in left else 1)


asyncio.run(main())
PY
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
one=$(free) two=$(free)
"$work/venv/bin/python" "$work/worker.py" "$one" 2> "$work/errors" & worker=$!
"$work/venv/bin/python" -m sglang_router.launch_router --host 127.0.0.1 --port "$two" --worker-urls "http://127.0.0.1:$one" \
  > "$work/log" 2>&1 & router=$!
"$work/venv/bin/python" "$work/leave.py" "http://127.0.0.1:$two" "http://127.0.0.1:$one"
