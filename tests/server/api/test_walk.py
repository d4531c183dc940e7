"""The way of a chat call until it is in the queue: how many of the server's functions it calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import server
from tests.server.live import Live

OWN = str(Path(server.__file__).parent)
MOST = 35
"""Functions that a call may call; one that is resumed counts once, and what a comprehension makes not at all."""


@contextmanager
def walked() -> Iterator[list[FrameType]]:
    """Notes the calls of the server's functions in this thread, until a request is submitted."""
    frames: list[FrameType] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"):
            return
        if code.co_name == "submit" and code.co_filename.endswith("dispatcher.py"):
            sys.setprofile(None)
        elif code.co_filename.startswith(OWN) and not any(frame is one for one in frames):
            frames.append(frame)

    sys.setprofile(profile)
    try:
        yield frames
    finally:
        sys.setprofile(None)


async def test_a_chat_calls_few_functions_until_it_is_in_the_queue(live: Live) -> None:
    await live.chat()
    with walked() as frames:
        await live.chat()
    names = [f"{Path(frame.f_code.co_filename).relative_to(OWN)} {frame.f_code.co_qualname}" for frame in frames]
    assert any(name.endswith("list_sampling") for name in names)
    assert len(names) <= MOST, "\n".join(names)
