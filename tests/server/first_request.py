"""Opens a service with a predictor, sends one chat, and prints what only that brought: modules and processes.

Run as a program, since the tests' own process has imported everything already.
"""

import asyncio
import json
import multiprocessing
import socket
import sys

from aiohttp import ClientSession

from server.composition.app import open_service
from server.config import ServeConfig
from server.process.life import listen

CHAT = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 4}


def present() -> set[str]:
    return {*sys.modules, *(child.name for child in multiprocessing.active_children())}


async def first_request(model: str, embedder: str) -> None:
    config = ServeConfig(model=model, embedder=embedder, strategy="lengthwise", no_journal=True, max_num_seqs=4)
    with socket.create_server(("127.0.0.1", 0)) as port:
        url = f"http://127.0.0.1:{port.getsockname()[1]}"
        async with open_service(config) as service, listen(service, port), ClientSession(url) as client:
            async with client.get("/health") as health:
                await health.read()
            before = present()
            async with client.post("/v1/chat/completions", json=CHAT) as answer:
                await answer.read()
            print(json.dumps({"status": answer.status, "new": sorted(present() - before)}))


if __name__ == "__main__":
    asyncio.run(first_request(*sys.argv[1:]))
