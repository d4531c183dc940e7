"""Log-probabilities in the API's three shapes: of a chat, of a completion, and of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.messages import TokenLogprob
from server.api.output.reply import (
    Alternative,
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    Lazy,
    PromptLogprob,
    PromptLogprobs,
)
from server.api.served_model import Codec

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_logprobs(tokens: Sequence[TokenLogprob], text: Codec) -> ChatLogprobs:
    """The tokens of a chat answer."""
    return ChatLogprobs(Lazy(partial(_chat_logprob, text=text), tokens))


def _chat_logprob(token: TokenLogprob, text: Codec) -> ChatLogprob:
    own = _alternative(token.token_id, token.logprob, text)
    return ChatLogprob(own.token, own.logprob, own.bytes, [_alternative(*pair, text) for pair in token.top])


def _alternative(token_id: int, logprob: float, text: Codec) -> Alternative:
    return Alternative(text.token_text(token_id), _finite(logprob), list(text.token_bytes(token_id)))


def completion_logprobs(
    ids: Sequence[int], tokens: Sequence[TokenLogprob | None], text: Codec, *, alternatives: int, offset: int
) -> CompletionLogprobs:
    """The tokens `ids` of a completion, of which the first stands `offset` characters into its text.

    The first token of a prompt has no log-probability: there None stands.
    """
    tops = Lazy(partial(_top, text=text, alternatives=alternatives), tokens)
    return CompletionLogprobs(
        tokens=[text.token_text(token_id) for token_id in ids],
        token_logprobs=[None if token is None else _finite(token.logprob) for token in tokens],
        top_logprobs=tops if alternatives else None,
        text_offset=_offsets(ids, text, offset),
    )


def _top(token: TokenLogprob | None, text: Codec, alternatives: int) -> dict[str, float] | None:
    """The likeliest tokens, and the one that stands there even if it is none of them."""
    if token is None:
        return None
    pairs = (*token.top[:alternatives], (token.token_id, token.logprob))
    return {text.token_text(token_id): _finite(logprob) for token_id, logprob in pairs}


def _offsets(ids: Sequence[int], text: Codec, offset: int) -> list[int]:
    offsets = []
    for token_id in ids:
        offsets.append(offset)
        offset += characters(token_id, text)
    return offsets


def characters(token_id: int, text: Codec) -> int:
    """Characters that a token begins: the later bytes of a character count for none, nor do special tokens."""
    if not text.decode([token_id]):
        return 0
    return sum(byte & 0xC0 != 0x80 for byte in text.token_bytes(token_id))


def prompt_logprobs(
    tokens: Sequence[TokenLogprob | None] | None, text: Codec, alternatives: int | None
) -> PromptLogprobs | None:
    """Candidates for each place of a prompt, by token id; None when the request did not ask for them."""
    if tokens is None or alternatives is None:
        return None
    return Lazy(partial(_ranked, text=text, alternatives=alternatives), tokens)


def _ranked(token: TokenLogprob | None, text: Codec, alternatives: int) -> dict[str, PromptLogprob] | None:
    if token is None:
        return None
    ranks = [(token_id, logprob, place + 1) for place, (token_id, logprob) in enumerate(token.top[:alternatives])]
    ranks.append((token.token_id, token.logprob, token.rank))
    return {
        str(token_id): PromptLogprob(_finite(logprob), rank, text.token_text(token_id))
        for token_id, logprob, rank in ranks
    }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
