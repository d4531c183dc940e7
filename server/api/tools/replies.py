"""What was read of an answer -> the fields of OpenAI's messages and chunks."""

from __future__ import annotations

from collections.abc import Sequence

from server.api.input.prompts import Prompt
from server.api.output.reply import FunctionCall, FunctionDelta, ToolCall, ToolCallDelta
from server.api.tools.reading import Argued, Called, FoundCalls, GuaranteedCalls, Piece, Reader, Said


def reader_of(prompt: Prompt) -> Reader:
    """Reads the answer to a prompt that offers tools."""
    if prompt.grammar is not None:
        return GuaranteedCalls()
    return FoundCalls(prompt.tools.names, parallel=prompt.tools.parallel)


def said(pieces: Sequence[Piece]) -> str:
    """The text besides the calls."""
    return "".join(piece.text for piece in pieces if isinstance(piece, Said))


def deltas(pieces: Sequence[Piece]) -> list[ToolCallDelta]:
    """What is added to the calls of a message, one delta a call. Each belongs in a chunk of its own: many clients read
    the first delta of a chunk only, or take a second one of the same index for another call.
    """
    parts = [piece for piece in pieces if not isinstance(piece, Said)]
    return [_delta([part for part in parts if part.index == index]) for index in dict.fromkeys(p.index for p in parts)]


def _delta(parts: Sequence[Called | Argued]) -> ToolCallDelta:
    """What a chunk adds to one call, from its parts in order."""
    first, arguments = parts[0], "".join(part.arguments for part in parts)
    if isinstance(first, Argued):
        return ToolCallDelta(first.index, FunctionDelta(arguments))
    return ToolCallDelta(first.index, FunctionDelta(arguments, first.name), first.id, "function")


def calls(pieces: Sequence[Piece]) -> list[ToolCall]:
    """All calls of a message."""
    return [
        ToolCall(piece.id, FunctionCall(piece.name, piece.arguments + _rest(piece.index, pieces)))
        for piece in pieces
        if isinstance(piece, Called)
    ]


def _rest(index: int, pieces: Sequence[Piece]) -> str:
    return "".join(piece.arguments for piece in pieces if isinstance(piece, Argued) and piece.index == index)
