"""The likeliest tokens of each row, and their logits in full precision where the head rounds its sums to 16 bits.

In bfloat16 a logit of 25 has steps of an eighth, so that the two likeliest tokens are often equal to the last bit, and
which of them is taken would be an accident.
"""

from __future__ import annotations

import torch
from torch import Tensor

LIKELIEST = 16
"""Tokens whose logits are summed anew."""

BLOCK = 64
"""Tokens of a row whose largest logit is found first."""

ROWS = 64
"""Rows at a time, so that little memory is taken where whole texts are read."""


def sharpen(logits: Tensor, hidden: Tensor, weight: Tensor) -> Tensor:
    """Sum the likeliest tokens' logits in float32, in place; each row's numbers depend on that row alone.

    logits   (rows, vocab) in float32, rounded to the dtype of the others
    hidden   (rows, width), what the head is given
    weight   (vocab, width) of the head
    returns  logits
    """
    for scores, inputs in zip(torch.split(logits, ROWS), torch.split(hidden, ROWS), strict=True):
        tokens = find_likeliest(scores, LIKELIEST)
        scores.scatter_(1, tokens, (weight[tokens].float() * inputs.float().unsqueeze(1)).sum(dim=-1))
    return logits


def find_likeliest(logits: Tensor, count: int) -> Tensor:
    """Ids (rows, count) of the largest of `logits` (rows, vocab): those of the blocks with the largest maxima, which
    takes a third of the time of a search in all of them. Fewer where the vocabulary is smaller.
    """
    vocab = logits.shape[1]
    blocks = vocab // BLOCK
    if blocks <= count:
        return logits.topk(min(count, vocab), dim=-1).indices
    within, behind = torch.split(torch.arange(vocab, device=logits.device), [blocks * BLOCK, vocab % BLOCK])
    maxima = logits[:, : blocks * BLOCK].view(len(logits), blocks, BLOCK).amax(dim=-1)
    found = within.view(blocks, BLOCK)[maxima.topk(count, dim=-1).indices].flatten(1)
    found = torch.cat((found, behind.expand(len(logits), -1)), dim=1)
    return found.gather(1, logits.gather(1, found).topk(count, dim=-1).indices)


def find_peaks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row of (rows, vocab), and the first token that has it: what `logits.max(dim=-1)` tells,
    NaN as the largest of all included, in a part of its time.
    """
    vocab = logits.shape[1]
    blocks = vocab // BLOCK
    if not blocks:
        return logits.max(dim=-1).values, logits.argmax(dim=-1)
    maxima = logits[:, : blocks * BLOCK].view(len(logits), blocks, BLOCK).amax(dim=-1)
    # What lies behind the last whole block, and so many before it that they are a block too.
    peaks, places = torch.cat((maxima, logits[:, -BLOCK:].amax(dim=-1, keepdim=True)), dim=1).max(dim=-1)
    starts = (places * BLOCK).clamp_(max=vocab - BLOCK)
    within = logits.gather(1, starts[:, None] + torch.arange(BLOCK, device=logits.device)).argmax(dim=-1)
    return peaks, starts + within
