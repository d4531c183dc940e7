"""What a gateway costs: its CPU time a token, and the time that it adds to first tokens.

python -m tests.tools.gateway_cost [--clients 32] [--step-ms 5] [--tokens 200] [--calls 8]
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import cast

import uvloop

from tests.server.gateway.processes import Process, backend, gateway

LAST = b"0\r\n\r\n"
"""A chunked body's end; a header may end likewise."""


@dataclass(eq=False)
class Client(asyncio.Protocol):
    """Sends calls one after another, and reads no more of their answers than where they begin and end."""

    body: bytes
    left: int
    over: asyncio.Future[None]
    first: list[float] = field(default_factory=list)
    """Seconds to the first event of each answer."""
    _sent: float = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._to = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._send()

    def data_received(self, data: bytes) -> None:
        if not self.over.done() and data.startswith(b"HTTP/") and b" 200 " not in data[:16]:
            self.over.set_exception(RuntimeError(data.decode()))
        if self._sent and b"data:" in data:
            self.first.append(time.perf_counter() - self._sent)
            self._sent = 0.0
        if data == LAST or data.endswith(b"\r\n" + LAST):
            if self.left:
                self._send()
            else:
                self.over.set_result(None)
                self._to.close()

    def _send(self) -> None:
        self.left -= 1
        self._sent = time.perf_counter()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._to.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(self.body), self.body))


async def play(server: Process, clients: int, calls: int, tokens: int) -> list[float]:
    """Seconds to the first tokens of all calls."""
    asked = {"messages": [{"role": "user", "content": "Say it " * 20}], "max_tokens": tokens, "stream": True}
    body, loop = json.dumps(asked).encode(), asyncio.get_running_loop()
    players = [Client(body, calls, loop.create_future()) for _ in range(clients)]
    for player in players:
        await loop.create_connection(lambda player=player: player, "127.0.0.1", server.port)  # type: ignore[misc]
    await asyncio.gather(*(player.over for player in players))
    return [one for player in players for one in player.first]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("clients", 32), ("tokens", 200), ("calls", 8), ("slots", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--step-ms", type=float, default=5.0)
    args = parser.parse_args()
    flags = ("--slots", str(args.slots))
    with backend(args.slots, args.step_ms) as behind, gateway(behind.url, flags=flags) as before:
        first = {}
        uvloop.run(play(before, args.clients, 2, args.tokens))  # what is only done once
        for name, server in (("direct", behind), ("gateway", before), ("direct again", behind)):
            cpu, start = before.cpu_seconds(), time.perf_counter()
            first[name] = uvloop.run(play(server, args.clients, args.calls, args.tokens))
            cpu, took, made = before.cpu_seconds() - cpu, time.perf_counter() - start, len(first[name]) * args.tokens
            share = f"{1e6 * cpu / made:6.1f} us of the gateway's CPU a token, " if server is before else ""
            told = statistics.median(first[name]) * 1000
            print(f"{name:13} {share}{made / took:8.0f} tokens/s, first token after {told:.1f} ms in the median")


if __name__ == "__main__":
    main()
