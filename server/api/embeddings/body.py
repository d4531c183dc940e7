"""POST /v1/embeddings: its body, and the body of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from server.api.input.schema import ModelName, TokenIds, one_kind

MOST_INPUTS = 2048
"""Inputs of a request, as OpenAI has it."""

MOST_TOKENS = 300_000
"""Tokens of all inputs of a request, as OpenAI has it."""


class EmbeddingBody(msgspec.Struct, frozen=True):
    """POST /v1/embeddings: a text, token ids of the embedding model, or a list of either."""

    input: Annotated[
        Annotated[str, Meta(min_length=1)]
        | Annotated[list[str | int | TokenIds], Meta(min_length=1, max_length=2**20)],
        one_kind(MOST_INPUTS),
    ]
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65536)] | None = None
    """How many numbers of each embedding are wanted; the first of them come, at length 1."""
    user: Annotated[str, Meta(max_length=65536)] | None = None


class Embedding(msgspec.Struct, frozen=True):
    """The embedding of one input: its numbers, or as base64 those of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True):
    """The embeddings of all inputs, in their order."""

    data: Sequence[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
