"""What was read of an answer -> the fields of OpenAI's messages and chunks."""

from __future__ import annotations

from collections.abc import Sequence

from server.prompts import Prompt
from server.reply import FunctionCall, FunctionDelta, ToolCall, ToolCallDelta
from server.tool_reading import Argued, Called, FoundCalls, GuaranteedCalls, Piece, Reader, Said


def reader_of(prompt: Prompt) -> Reader:
    """Reads the answer to a prompt that offers tools."""
    if prompt.grammar is not None:
        return GuaranteedCalls()
    return FoundCalls(prompt.tools.names, parallel=prompt.tools.parallel)


def said(pieces: Sequence[Piece]) -> str:
    """The text besides the calls."""
    return "".join(piece.text for piece in pieces if isinstance(piece, Said))


def deltas(pieces: Sequence[Piece]) -> list[ToolCallDelta]:
    """What a chunk adds to the calls of a message."""
    return [_delta(piece) for piece in pieces if not isinstance(piece, Said)]


def _delta(piece: Called | Argued) -> ToolCallDelta:
    if isinstance(piece, Argued):
        return ToolCallDelta(piece.index, FunctionDelta(piece.arguments))
    return ToolCallDelta(piece.index, FunctionDelta(piece.arguments, piece.name), piece.id, "function")


def calls(pieces: Sequence[Piece]) -> list[ToolCall]:
    """All calls of a message."""
    return [
        ToolCall(piece.id, FunctionCall(piece.name, piece.arguments + _rest(piece.index, pieces)))
        for piece in pieces
        if isinstance(piece, Called)
    ]


def _rest(index: int, pieces: Sequence[Piece]) -> str:
    return "".join(piece.arguments for piece in pieces if isinstance(piece, Argued) and piece.index == index)
