"""Likeliest tokens with float32 logits: in bfloat16 a logit of 25 has steps of an eighth, so ties would decide."""

import torch
from torch import Tensor

LIKELIEST = 16  # tokens summed again

BLOCK = 64  # searched first

ROWS = 64  # bounds memory


def sharpen(logits: Tensor, hidden: Tensor, weight: Tensor) -> Tensor:
    """In place, each row by itself.

    logits   (rows, vocab) in float32, rounded
    hidden   (rows, width)
    weight   (vocab, width)
    """
    for scores, inputs in zip(torch.split(logits, ROWS), torch.split(hidden, ROWS), strict=True):
        tokens = find_likeliest(scores, LIKELIEST)
        scores.scatter_(1, tokens, (weight[tokens].float() * inputs.float().unsqueeze(1)).sum(dim=-1))
    return logits


def find_likeliest(logits: Tensor, count: int) -> Tensor:
    """Ids (rows, count), by block maxima: a third of the time."""
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
    """Faster `logits.max(dim=-1)`, with equal ties and NaN."""
    vocab = logits.shape[1]
    blocks = vocab // BLOCK
    if not blocks:
        return logits.max(dim=-1).values, logits.argmax(dim=-1)
    maxima = logits[:, : blocks * BLOCK].view(len(logits), blocks, BLOCK).amax(dim=-1)
    # the last whole block may overlap
    peaks, places = torch.cat((maxima, logits[:, -BLOCK:].amax(dim=-1, keepdim=True)), dim=1).max(dim=-1)
    starts = (places * BLOCK).clamp_(max=vocab - BLOCK)
    within = logits.gather(1, starts[:, None] + torch.arange(BLOCK, device=logits.device)).argmax(dim=-1)
    return peaks, starts + within
