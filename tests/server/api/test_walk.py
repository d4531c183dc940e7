"""How many of the project's own functions a streamed chat calls on the event loop of a real server with the default."""

import socket
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType

from aiohttp import ClientSession

import server
from server.composition.app import open_service
from server.config import load_config
from server.process.life import listen

ROOT = Path(server.__file__).parents[1]
OWN = tuple(str(ROOT / name) for name in ("models", "engine", "scheduler", "server", "loadgen"))
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")

# Calls until the request is queued (the server's alone), until its first token is sent, and for each further token.
TO_QUEUE, TO_FIRST_TOKEN, EACH_TOKEN = 42, 500, 90

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, "ignore_eos": True, "stream": True}


async def stream(client: ClientSession) -> None:
    async with client.post("/v1/chat/completions", json=CHAT) as answer:
        assert answer.status == 200
        await answer.read()


async def walk(client: ClientSession) -> list[str]:
    """Calls in this thread while a chat streams, in order; resumed functions count once, comprehensions not at all."""
    frames: dict[int, FrameType] = {}  # kept alive, so that ids are unique

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OWN) and code.co_name not in COMPREHENSIONS:
            frames.setdefault(id(frame), frame)

    sys.setprofile(profile)
    try:
        await stream(client)
    finally:
        sys.setprofile(None)
    codes = [frame.f_code for frame in frames.values()]
    return [f"{Path(code.co_filename).relative_to(ROOT)} {code.co_qualname}" for code in codes]


def show(calls: list[str]) -> str:
    return "\n".join(f"{count:4d} {name}" for name, count in Counter(calls).most_common())


SUBMIT, STEP = "scheduler/dispatcher.py Dispatcher.submit_all", "scheduler/dispatcher.py Dispatcher.receive"
SENT = "server/api/output/reply.py encode"  # of a token that brings text


def until_queued(names: list[str]) -> list[str]:
    return [name for name in names[: names.index(SUBMIT)] if name.startswith("server/")]


def split_at_steps(names: list[str]) -> list[list[str]]:
    """Until the second step's report comes, and from each to the next."""
    places = [place for place, name in enumerate(names) if name == STEP][1:]
    return [names[a:b] for a, b in pairwise([0, *places])]


async def test_a_chat_calls_few_functions_until_it_is_in_the_queue_and_for_each_token(tiny_folder: Path) -> None:
    config = load_config({"model": str(tiny_folder), "no_journal": True, "max_num_seqs": 16}, {}, None)
    walks: list[list[str]] = []
    first: list[list[str]] = []  # of walks in which the first token was sent before the second step's report came
    with socket.create_server(("127.0.0.1", 0)) as port:
        url = f"http://127.0.0.1:{port.getsockname()[1]}"
        async with open_service(config) as service, listen(service, port), ClientSession(url) as client:
            for _ in range(8):
                await stream(client)
            while len(first) < 20 and len(walks) < 200:
                walks.append(await walk(client))
                first += [span for span in split_at_steps(walks[-1])[:1] if SENT in span]
    # Timers call in between, so the least of each figure counts.
    queued = min(map(until_queued, walks), key=len)
    assert "server/api/input/sampling.py list_sampling" in queued
    assert len(queued) <= TO_QUEUE, show(queued)
    sent = min(first, key=len)
    assert len(sent) <= TO_FIRST_TOKEN, f"{len(sent)}\n" + show(sent)
    tokens = [split_at_steps(names)[1:] for names in walks]
    each = min(median(map(len, spans)) for spans in tokens)
    assert each <= EACH_TOKEN, f"{each}\n" + show(max(tokens[0], key=len))
