"""One request to send, as a workload describes it. Knows no HTTP and no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and the number of tokens asked for; exactly one of `messages`, `text` and `tokens` is given."""

    messages: tuple[Mapping[str, str], ...] = ()
    """Chat messages; empty when `tokens` or `text` is used."""
    text: str | None = None
    """A raw completion prompt."""
    tokens: tuple[int, ...] = ()
    """A raw completion prompt as token ids."""
    follow_ups: tuple[str, ...] = ()
    """The user's further turns, each sent once the one before has been answered; for chat messages only."""
    max_tokens: int | None = None
    replay_tokens: int | None = None
    """Length that the server shall generate; needs a server that was started with --allow-replay."""
    arrival: float | None = None
    """Seconds after the start, for traces; None leaves it to the arrival process."""
    label: str = ""
    """The task or trace that it comes from."""
    input_length: int | None = None
    """Tokens of the prompt, where the workload knows."""
