"""Log-probabilities in the API's three shapes: of a chat, of a completion, and of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from engine.messages import TokenLogprob
from server.api.output import reply

if TYPE_CHECKING:
    from models.text import Text

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_logprobs(tokens: Sequence[TokenLogprob], text: Text) -> reply.ChatLogprobs:
    """The tokens of a chat answer."""
    return reply.ChatLogprobs(reply.Lazy(partial(_chat_logprob, text=text), tokens))


def _chat_logprob(token: TokenLogprob, text: Text) -> reply.ChatLogprob:
    own = _alternative(token.token_id, token.logprob, text)
    return reply.ChatLogprob(own.token, own.logprob, own.bytes, [_alternative(*pair, text) for pair in token.top])


def _alternative(token_id: int, logprob: float, text: Text) -> reply.Alternative:
    return reply.Alternative(text.token_text(token_id), _finite(logprob), list(text.token_bytes(token_id)))


def completion_logprobs(
    ids: Sequence[int], tokens: Sequence[TokenLogprob | None], text: Text, *, alternatives: int, offset: int
) -> reply.CompletionLogprobs:
    """The tokens `ids` of a completion, of which the first stands `offset` characters into its text.

    The first token of a prompt has no log-probability: there None stands.
    """
    tops = reply.Lazy(partial(_top, text=text, alternatives=alternatives), tokens)
    return reply.CompletionLogprobs(
        tokens=[text.token_text(token_id) for token_id in ids],
        token_logprobs=[None if token is None else _finite(token.logprob) for token in tokens],
        top_logprobs=tops if alternatives else None,
        text_offset=_offsets(ids, text, offset),
    )


def _top(token: TokenLogprob | None, text: Text, alternatives: int) -> dict[str, float] | None:
    """The likeliest tokens, and the one that stands there even if it is none of them."""
    if token is None:
        return None
    pairs = (*token.top[:alternatives], (token.token_id, token.logprob))
    return {text.token_text(token_id): _finite(logprob) for token_id, logprob in pairs}


def _offsets(ids: Sequence[int], text: Text, offset: int) -> list[int]:
    offsets = []
    for token_id in ids:
        offsets.append(offset)
        offset += characters(token_id, text)
    return offsets


def characters(token_id: int, text: Text) -> int:
    """Characters that a token begins: the later bytes of a character count for none, nor do special tokens."""
    if not text.decode([token_id]):
        return 0
    return sum(byte & 0xC0 != 0x80 for byte in text.token_bytes(token_id))


def prompt_logprobs(
    tokens: Sequence[TokenLogprob | None] | None, text: Text, alternatives: int | None
) -> reply.PromptLogprobs | None:
    """Candidates for each place of a prompt, by token id; None when the request did not ask for them."""
    if tokens is None or alternatives is None:
        return None
    return reply.Lazy(partial(_ranked, text=text, alternatives=alternatives), tokens)


def _ranked(token: TokenLogprob | None, text: Text, alternatives: int) -> dict[str, reply.PromptLogprob] | None:
    if token is None:
        return None
    ranks = [(token_id, logprob, place + 1) for place, (token_id, logprob) in enumerate(token.top[:alternatives])]
    ranks.append((token.token_id, token.logprob, token.rank))
    return {
        str(token_id): reply.PromptLogprob(_finite(logprob), rank, text.token_text(token_id))
        for token_id, logprob, rank in ranks
    }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
