"""Chooses the next token of each row from its logits. Knows rows' parameters and counts, no cache and no network.

All rows are sampled at once; what only some rows ask for (bias, penalties, log-probabilities) is computed for
those rows only. The order of the steps is the field's: bar, grammar, bias, penalties, temperature, min-p, top-k, top-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.device import RowFault
from engine.messages import SamplingParams, TokenLogprob
from engine.row import Choice, Row
from engine.sampling.grammar import GrammarFault
from engine.sampling.masks import masks

BLOCK = 256
"""Tokens whose probabilities are summed up at a time."""


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

    The host waits for the device once, at the end; rows that want log-probabilities cost it more.
    """
    peaks, chosen = logits.max(dim=-1)
    wants = [place for place, row in enumerate(rows) if row.sampling.logprobs is not None]
    raw = logits[wants].log_softmax(dim=-1) if wants else logits[:0]
    allowed, faults = masks(rows, logits)
    shaped = [place for place, row in enumerate(rows) if shape(row, logits[place], allowed.get(place))]
    if shaped:
        chosen[shaped] = logits[shaped].argmax(dim=-1)
    draws = [place for place, row in enumerate(rows) if row.sampling.temperature > 0]
    if draws:
        chosen[draws] = draw([rows[place] for place in draws], logits[draws])
    reports = dict(zip(wants, raw, strict=True))
    tokens, finite = torch.stack([chosen, torch.isfinite(peaks).long()]).tolist()
    failed: dict[int, Unchosen] = {**faults}
    failed.update((place, NonFiniteLogits()) for place, sound in enumerate(finite) if not sound)
    return [
        failed.get(place) or Choice(token, _logprob(row, reports.get(place), token))
        for place, (row, token) in enumerate(zip(rows, tokens, strict=True))
    ]


def shape(row: Row, logits: Tensor, allowed: Tensor | None = None) -> bool:
    """Apply what one row asks for beyond temperature and cut-offs, in place on (vocab,); returns whether it did.

    allowed  (vocab,) boolean, what the row's grammar lets follow; None for rows without one
    """
    barred, bias = row.barred, row.sampling.logit_bias
    if allowed is not None:  # what is barred was left out of it, where it may be
        logits.masked_fill_(~allowed, -torch.inf)
    elif barred:
        logits[list(barred)] = -torch.inf
    if bias:
        logits[[token for token, _ in bias]] += torch.tensor([value for _, value in bias], device=logits.device)
    if row.sampling.penalizes:
        penalize(row, logits)
    return allowed is not None or bool(barred or bias or row.sampling.penalizes)


def penalize(row: Row, logits: Tensor) -> None:
    """Repetition penalty over prompt and answer; frequency and presence penalties over the answer alone."""
    params, counts = row.sampling, row.counts
    seen = list({*row.prompt, *counts})
    values = logits[seen]
    logits[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if counts:
        often = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        logits[list(counts)] -= params.frequency_penalty * often + params.presence_penalty


def draw(rows: Sequence[Row], logits: Tensor) -> Tensor:
    """Sample (rows, vocab) by inverse transform: one uniform number a row, so neighbours cannot change the draw.

    Only rows that cut their distribution pay for a sort. Which way a row goes depends on itself alone, since the
    same number picks different tokens from a sorted and an unsorted distribution.
    """
    tokens = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    for ranked in (False, True):
        places = [place for place, row in enumerate(rows) if _cuts(row.sampling) is ranked]
        if places:
            draw_some = _draw_ranked if ranked else _draw_plain
            tokens[places] = draw_some([rows[place] for place in places], logits[places])
    return tokens


def _cuts(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _draw_plain(rows: Sequence[Row], logits: Tensor) -> Tensor:
    return _invert((logits / _temperatures(rows, logits)).softmax(dim=-1), rows)


def _draw_ranked(rows: Sequence[Row], logits: Tensor) -> Tensor:
    ordered, tokens = (logits / _temperatures(rows, logits)).sort(dim=-1, descending=True, stable=True)
    _cut_min_p(ordered, [row.sampling.min_p for row in rows])
    _cut_top_k(ordered, [row.sampling.top_k for row in rows])
    probabilities = _cut_top_p(ordered.softmax(dim=-1), [row.sampling.top_p for row in rows])
    places = _invert(probabilities, rows)
    return tokens.gather(1, places[:, None])[:, 0]


def _temperatures(rows: Sequence[Row], logits: Tensor) -> Tensor:
    """Never so low that dividing by it overflows; what is below is as good as greedy."""
    given = torch.tensor([[row.sampling.temperature] for row in rows], dtype=logits.dtype, device=logits.device)
    return given.clamp_(min=1e-6)


def uniform(seed: int, step: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments: Philox with the step as its counter."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=step)).random())


def _invert(probabilities: Tensor, rows: Sequence[Row]) -> Tensor:
    """The first place of each row at which the cumulative probability exceeds the row's random number.

    Only the block of `BLOCK` places in which that happens is looked at place by place: a running sum over all of a
    vocabulary, for all rows, took a fifth of a decode step.
    """
    vocab = probabilities.shape[-1]
    whole = F.pad(probabilities, (0, -vocab % BLOCK)) if vocab % BLOCK else probabilities
    blocks = whole.reshape(len(rows), -1, BLOCK)
    ends = blocks.sum(dim=-1).double().cumsum(dim=-1)
    numbers = torch.tensor([[uniform(row.sampling.seed, row.step)] for row in rows], dtype=torch.float64)
    targets = numbers.to(ends.device) * ends[:, -1:]
    found = torch.searchsorted(ends, targets, right=True).clamp_(max=ends.shape[-1] - 1)
    before = F.pad(ends, (1, 0)).gather(1, found)
    within = blocks.gather(1, found[:, :, None].expand(-1, 1, BLOCK))[:, 0].double().cumsum(dim=-1)
    # Sums of blocks are rounded otherwise than those within: never beyond the last place that has a probability.
    rest = torch.minimum(targets - before, within[:, -1:] * (1 - 2**-50))
    places = found * BLOCK + torch.searchsorted(within, rest, right=True)
    return places[:, 0].clamp_(max=vocab - 1)


def _cut_min_p(ordered: Tensor, floors: Sequence[float]) -> None:
    """Drop tokens less likely than min_p times the likeliest, which is the first."""
    floor = torch.tensor(floors, device=ordered.device).log()[:, None]
    ordered.masked_fill_(ordered < ordered[:, :1] + floor, -torch.inf)


def _cut_top_k(ordered: Tensor, sizes: Sequence[int]) -> None:
    """Keep the k likeliest; `ordered` is descending along its last dimension."""
    vocab = ordered.shape[-1]
    keep = torch.tensor([size if size > 0 else vocab for size in sizes], device=ordered.device)
    ordered.masked_fill_(torch.arange(vocab, device=ordered.device) >= keep[:, None], -torch.inf)


def _cut_top_p(probabilities: Tensor, masses: Sequence[float]) -> Tensor:
    """Keep the fewest likeliest tokens that together reach the mass; the likeliest always stays."""
    before = probabilities.cumsum(dim=-1) - probabilities
    mass = torch.tensor(masses, device=probabilities.device)[:, None]
    return probabilities.masked_fill((before >= mass) & (before > 0) & (mass < 1), 0.0)


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
