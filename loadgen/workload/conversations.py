"""Conversations made of a workload's requests, each of which becomes a turn. Knows no dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadgen.client.prompt import Prompt
from models.errors import UserError


def join_turns(prompts: Sequence[Prompt], turns: int) -> list[Prompt]:
    """Conversations of `turns` chat requests each, in their order; the last one may be shorter. Raises UserError."""
    if turns > 1 and not all(prompt.messages for prompt in prompts):
        raise UserError("--turns: this workload's requests are not chat messages, so none can follow another")
    groups = (prompts[place : place + turns] for place in range(0, len(prompts), turns))
    return [_join(first, later) for first, *later in groups]


def _join(first: Prompt, later: Sequence[Prompt]) -> Prompt:
    return replace(first, follow_ups=tuple("\n\n".join(_texts(prompt)) for prompt in later))


def _texts(prompt: Prompt) -> Iterator[str]:
    for message in prompt.messages:
        yield message["content"]
