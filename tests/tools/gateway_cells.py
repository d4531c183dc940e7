"""What a gateway without flags serves of what its backend does, by answers' length, clients and slots.

    python -m tests.tools.gateway_cells [--only 40/4/1/2] [--calls 300] [--port PORT]

A line a cell: calls a second from the second hundred calls on, direct and through a gateway of its own. Before a cheap
backend in a process of its own, or an engine that listens on PORT and has the slots of --only.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import uvloop

from tests.server.gateway.processes import Listener, backend, gateway

SHAPES = ((40, 1), (40, 4), (40, 40), (40, 400), (2000, 1))
"""Words in and tokens out."""
FIRST = 100


async def ask(port: int, key: str, words: int, tokens: int) -> float:
    """When the answer of a call was over, by the clock."""
    asked = {"messages": [{"role": "user", "content": "word " * words}], "max_tokens": tokens, "user": key}
    body = json.dumps(asked | {"stream": True, "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)  # holds a whole answer
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    try:
        told = await reader.readuntil(b"\r\n0\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 200"), told
        return time.monotonic()
    finally:
        writer.close()


async def rate(port: int, calls: int, keys: int, words: int, tokens: int, slots: int) -> float:
    """Calls a second from the second hundred on, as long as all slots have work."""
    asked = (ask(port, f"user {number % keys}", words, tokens) for number in range(calls))
    ends = sorted(await asyncio.gather(*asked))[FIRST : calls - slots]
    return (len(ends) - 1) / (ends[-1] - ends[0])


def measure(behind: Listener, words: int, tokens: int, keys: int, slots: int, calls: int) -> tuple[float, float, float]:
    """Calls a second direct and through a gateway, and milliseconds of the gateway's CPU a call."""
    with gateway(behind.url, flags=("--fair",)) as before:
        direct = uvloop.run(rate(behind.port, calls, keys, words, tokens, slots))
        cpu = before.cpu_seconds()
        through = uvloop.run(rate(before.port, calls, keys, words, tokens, slots))
        return direct, through, 1000 * (before.cpu_seconds() - cpu) / calls


@contextmanager
def started_or_found(port: int | None, slots: int, step: float) -> Iterator[Listener]:
    if port is None:
        with backend(slots, step) as process:
            yield process
    else:
        yield Listener(f"http://127.0.0.1:{port}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="words/tokens/keys/slots")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--step-ms", type=float, help="default: as long as the backend then serves 300 calls a second")
    parser.add_argument("--port", type=int, help="of an engine that runs")
    args = parser.parse_args()
    for (words, tokens), keys, slots in product(SHAPES, (1, 2, 20), (4, 16, 64)):
        if args.only and args.only != f"{words}/{tokens}/{keys}/{slots}":
            continue
        step = args.step_ms or max(10.0, slots * 4 / tokens)
        calls = max(args.calls, FIRST + 4 * slots)
        with started_or_found(args.port, slots, step) as behind:
            direct, through, cpu = measure(behind, words, tokens, keys, slots, calls)
        print(
            f"{words:5} in {tokens:4} out {keys:3} keys {slots:3} slots of {step:.0f} ms: {direct:6.1f} "
            f"-> {through:6.1f}, {through / direct:.3f}, {cpu:.2f} ms {'' if through >= 0.97 * direct else 'LOW'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
