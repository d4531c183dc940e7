"""Splits a conversation into instruction and user input (Magnus, section III-B), for prediction only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class InstructionSplit(StrEnum):
    """Where the instruction is without a system message."""

    SYSTEM = "system"  # none
    FIRST_LINE = "first-line"  # of the first user message
    BLANK_LINE = "blank-line"  # up to the first user message's first blank line


@dataclass(frozen=True, slots=True)
class SplitPrompt:
    """Stripped; either may be empty."""

    instruction: str
    user_input: str


def split_messages(messages: Sequence[Mapping[str, str]], how: InstructionSplit) -> SplitPrompt:
    """System messages make the instruction, all others the user input."""
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
    """All user input if not split."""
    if how is InstructionSplit.SYSTEM:
        return SplitPrompt("", text.strip())
    lines = text.strip().splitlines()
    blank = next((place for place, line in enumerate(lines) if not line.strip()), len(lines))
    end = 1 if how is InstructionSplit.FIRST_LINE else blank
    if end >= len(lines):
        return SplitPrompt("", text.strip())
    return SplitPrompt("\n".join(lines[:end]).strip(), "\n".join(lines[end:]).strip())


def split_by(instruction: str, contents: Sequence[str]) -> SplitPrompt:
    """By the client's instruction, wherever it is."""
    given, whole = instruction.strip(), "\n".join(contents)
    before, _, after = whole.partition(given) if given else (whole, "", "")
    return SplitPrompt(given, f"{before}{after}".strip())
