"""Chooses the next token of each row from its logits. Knows rows' parameters and counts, no cache and no network.

All rows are sampled at once; what only some rows ask for (bias, penalties, log-probabilities) is computed for
those rows only. The order of the steps is the field's: bar, grammar, bias, penalties, temperature, min-p, top-k, top-p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from engine.device import RowFault
from engine.messages import TokenLogprob
from engine.row import Choice, Row
from engine.sampling.draw import draw
from engine.sampling.masks import masks
from engine.sampling.matcher import GrammarFault
from engine.sampling.penalties import penalize
from models.network.likeliest import find_peaks


class NonFiniteLogits(RowFault):
    """The network computed NaN or infinity for a row."""

    wipe = True

    def __init__(self) -> None:
        super().__init__("the model computed a value that is not a finite number")


Unchosen: TypeAlias = NonFiniteLogits | GrammarFault
"""Why a row has no next token."""


def sample(rows: Sequence[Row], logits: Tensor) -> list[Choice | Unchosen]:
    """The next token of each row, or why it has none.

    logits  (rows, vocab) in float32; rows that shape theirs do so in place, after log-probabilities are taken

    The host waits for the device once, at the end; rows that want log-probabilities or cut their distribution cost
    it more.
    """
    peaks, chosen = find_peaks(logits)
    wants = [place for place, row in enumerate(rows) if row.sampling.logprobs is not None]
    raw = logits[wants].log_softmax(dim=-1) if wants else logits[:0]
    allowed, faults = masks(rows, logits)
    shaped = [place for place in shape(rows, logits, allowed) if rows[place].sampling.temperature == 0]
    if shaped:
        chosen[shaped] = find_peaks(logits[shaped])[1]
    draws = [place for place, row in enumerate(rows) if row.sampling.temperature > 0]
    if draws:
        some = logits if len(draws) == len(rows) else logits[draws]
        chosen[draws] = draw([rows[place] for place in draws], some)
    reports = dict(zip(wants, raw, strict=True))
    tokens, finite = torch.stack([chosen, torch.isfinite(peaks).long()]).tolist()
    failed: dict[int, Unchosen] = {**faults}
    failed.update((place, NonFiniteLogits()) for place, sound in enumerate(finite) if not sound)
    return [
        failed.get(place) or Choice(token, _logprob(row, reports.get(place), token))
        for place, (row, token) in enumerate(zip(rows, tokens, strict=True))
    ]


def shape(rows: Sequence[Row], logits: Tensor, allowed: Mapping[int, Tensor]) -> set[int]:
    """Apply what rows ask for beyond temperature and cut-offs, in place on (rows, vocab); the places that it changed.

    allowed  by place, (vocab,) boolean, what a row's grammar lets follow; what is barred was left out of it
    """
    for place, follows in allowed.items():
        logits[place].masked_fill_(~follows, -torch.inf)
    barred = [(place, row.barred) for place, row in enumerate(rows) if place not in allowed]
    cells = [(place, token) for place, tokens in barred for token in tokens]
    if cells:
        logits[tuple(zip(*cells, strict=True))] = -torch.inf
    biases = [(place, *bias) for place, row in enumerate(rows) for bias in row.sampling.logit_bias]
    if biases:
        at, ids, values = zip(*biases, strict=True)
        logits[at, ids] += torch.tensor(values, device=logits.device)
    return {*allowed, *penalize(rows, logits), *(place for place, _ in cells), *(place for place, *_ in biases)}


def _logprob(row: Row, logprobs: Tensor | None, token: int) -> TokenLogprob | None:
    if logprobs is None or row.sampling.logprobs is None:
        return None
    return token_logprob(logprobs, token, row.sampling.logprobs)


def token_logprob(logprobs: Tensor, token: int, top: int) -> TokenLogprob:
    """Report one token out of (vocab,) log-probabilities, with the `top` likeliest beside it."""
    own = logprobs[token]
    rank = int((logprobs > own).sum()) + 1
    values, tokens = logprobs.topk(top)
    return TokenLogprob(token, float(own), rank, tuple(zip(tokens.tolist(), values.tolist(), strict=True)))
