"""The split of a conversation into the application's instruction and the user's own input (Magnus, section III-B).

It decides nothing else: the model gets the conversation as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class InstructionSplit(StrEnum):
    """The place of the instruction when there is no system message; with one, it is always that."""

    SYSTEM = "system"
    """No instruction: everything is user input."""
    FIRST_LINE = "first-line"
    """The first user message's first line."""
    BLANK_LINE = "blank-line"
    """The first user message up to its first blank line."""


@dataclass(frozen=True, slots=True)
class SplitPrompt:
    """Instruction and user input without white space around them; either may be empty."""

    instruction: str
    user_input: str


def split_messages(messages: Sequence[Mapping[str, str]], how: InstructionSplit) -> SplitPrompt:
    """Messages with `role` and `content`, as chat templates take them -> instruction and user input.

    Several system messages make one instruction; all other messages, answers included, make the user input.
    """
    system = [message["content"] for message in messages if message["role"] == "system"]
    others = [message["content"] for message in messages if message["role"] != "system"]
    if system or how is InstructionSplit.SYSTEM:
        return SplitPrompt("\n".join(system).strip(), "\n".join(others).strip())
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        return SplitPrompt("", "\n".join(others).strip())
    one = split_text(others[first], how)
    rest = (*others[:first], one.user_input, *others[first + 1 :])
    return SplitPrompt(one.instruction, "\n".join(rest).strip())


def split_text(text: str, how: InstructionSplit) -> SplitPrompt:
    """One prompt -> instruction and user input. A text in one piece is all user input."""
    if how is InstructionSplit.SYSTEM:
        return SplitPrompt("", text.strip())
    lines = text.strip().splitlines()
    end = 1 if how is InstructionSplit.FIRST_LINE else _first_blank(lines)
    if end >= len(lines):
        return SplitPrompt("", text.strip())
    return SplitPrompt("\n".join(lines[:end]).strip(), "\n".join(lines[end:]).strip())


def split_by(instruction: str, contents: Sequence[str]) -> SplitPrompt:
    """Split off the instruction that the client names; all else, before and after it, is user input."""
    given, whole = instruction.strip(), "\n".join(contents)
    before, _, after = whole.partition(given) if given else (whole, "", "")
    return SplitPrompt(given, f"{before}{after}".strip())


def _first_blank(lines: Sequence[str]) -> int:
    return next((place for place, line in enumerate(lines) if not line.strip()), len(lines))
