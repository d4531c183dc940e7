"""Chooses the next token of each row from its logits. Knows rows' parameters and counts, no cache and no network.

All rows are sampled at once; what only some rows ask for (bias, penalties, log-probabilities) is computed for
those rows only. The order of the steps is the field's: bar, grammar, bias, penalties, temperature, min-p, top-k, top-p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import RowFault
from engine.messages import TokenLogprob
from engine.row import Choice, Row
from engine.sampling.draw import draw
from engine.sampling.matcher import GrammarFault
from models.network.likeliest import find_peaks

Masks: TypeAlias = tuple[dict[int, Tensor], dict[int, GrammarFault]]


def masks(rows: Sequence[Row], logits: Tensor) -> Masks:
    """For each place of a row with a grammar: what may follow there (vocab,), boolean, or the fault that hides it.

    logits  (rows, vocab), whose device and width the masks take

    A fault is the row's own; the others never notice. Rows without a grammar cost nothing.
    """
    bits: dict[int, NDArray[np.uint8]] = {}
    faults: dict[int, GrammarFault] = {}
    for place, row in enumerate(rows):
        try:
            line = row.allowed()
        except GrammarFault as fault:
            faults[place] = fault
        else:
            if line is not None:
                bits[place] = line
    if not bits:
        return {}, faults
    packed = torch.from_numpy(np.stack(list(bits.values()))).to(logits.device)
    return dict(zip(bits, unpack(packed, logits.shape[-1]), strict=True)), faults


def unpack(packed: Tensor, width: int) -> Tensor:
    """(rows, bytes) of eight tokens each, the least bit first -> (rows, width), boolean. One copy for all rows."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, :, None] >> places) & 1).bool().flatten(1)[:, :width]


def penalize(rows: Sequence[Row], logits: Tensor) -> list[int]:
    """Apply the penalties of the rows that have some, in place on (rows, vocab); returns the places of these rows."""
    penalized = [place for place, row in enumerate(rows) if row.sampling.penalizes]
    if not penalized:
        return []
    said = [rows[place].said for place in penalized]
    wishes = [rows[place].sampling for place in penalized]
    given = [(one.repetition_penalty, one.frequency_penalty, one.presence_penalty) for one in wishes]
    lengths = torch.tensor([len(one.tokens) for one in said])
    # A line for each token that a row has said: where it is, how often the answer has it, the row's three penalties.
    tokens = torch.from_numpy(np.concatenate([np.frombuffer(one.tokens, np.int64) for one in said])).to(logits.device)
    counts = torch.from_numpy(np.concatenate([np.frombuffer(one.counts, np.float32) for one in said]))
    places = torch.tensor(penalized).repeat_interleave(lengths).to(logits.device)
    lines = torch.cat([counts[:, None], torch.tensor(given).repeat_interleave(lengths, dim=0)], dim=1)
    often, repetition, frequency, presence = lines.to(logits.device).unbind(dim=1)
    values = logits[places, tokens]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[places, tokens] = values - (frequency * often + presence * (often > 0))
    return penalized


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
