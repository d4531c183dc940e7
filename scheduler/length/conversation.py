"""What SSJF's proxy reads of a request: its whole conversation as one text (SSJF, section 3.1)."""

from __future__ import annotations

from scheduler.length.features import LengthQuery


def conversation(query: LengthQuery) -> str:
    """All earlier prompts and answers and the new prompt, in order; the predictor reads the end of it.

    A query has them already: the instruction, and in `user_input` all other messages, answers included.
    """
    return f"{query.instruction}\n{query.user_input}" if query.instruction else query.user_input
