"""The way of a chat call to the queue and of its tokens to the client: how many of the project's own functions are
called on the event loop."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType

import server
from tests.server.live import Live

ROOT = Path(server.__file__).parents[1]
OWN = tuple(str(ROOT / name) for name in ("models", "engine", "scheduler", "server", "loadgen"))
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")

TO_QUEUE, TO_FIRST_TOKEN, EACH_TOKEN = 35, 414, 91
"""Functions that may be called: the server's until the call is in the queue, all until its first token is sent, and all
for each further one, of which this is the median. One that is resumed counts once, and what a comprehension makes not
at all."""


async def walk(live: Live) -> list[str]:
    """Files and names of the project's functions that a streamed chat calls in this thread, in order."""
    frames: dict[int, FrameType] = {}  # which live on in it, so that no two have one id

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OWN) and code.co_name not in COMPREHENSIONS:
            frames.setdefault(id(frame), frame)

    await live.stream_chat()
    sys.setprofile(profile)
    try:
        await live.stream_chat()
    finally:
        sys.setprofile(None)
    codes = [frame.f_code for frame in frames.values()]
    return [f"{Path(code.co_filename).relative_to(ROOT)} {code.co_qualname}" for code in codes]


async def test_a_chat_calls_few_functions_until_it_is_in_the_queue_and_for_each_token(live: Live) -> None:
    walks = [await walk(live) for _ in range(3)]  # what a timer calls may come between, so the shortest counts
    names = min(walks, key=len)
    queued = [one for one in names[: names.index("scheduler/dispatcher.py Dispatcher.submit")] if one[:7] == "server/"]
    assert "server/api/output/wanted.py list_sampling" in queued
    assert len(queued) <= TO_QUEUE, "\n".join(queued)
    steps = [place for place, name in enumerate(names) if name == "scheduler/dispatcher.py Dispatcher.receive"]
    assert steps[1] <= TO_FIRST_TOKEN, "\n".join(names[: steps[1]])
    assert median(b - a for a, b in pairwise(steps[1:])) <= EACH_TOKEN, "\n".join(names[steps[3] : steps[4]])
