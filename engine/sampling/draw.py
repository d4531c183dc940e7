"""Draws by each row's seed and step: temperature, min-p, top-k, top-p."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.transfer import send

BLOCK = 256  # summed at a time

CANDIDATES = 256  # settle most draws without sorting

REDRAWN = 8  # one row in these may be redrawn without the host

# probability near rounding: redrawn from the whole vocabulary, so that a seed's token is unique
DOUBT = 1e-5


@dataclass(frozen=True, slots=True)
class Drawn:
    """(rows,), and which are settled; None: all."""

    tokens: Tensor
    settled: Tensor | None = None
    redraw: Callable[[int], int] = int  # place -> settled token


def draw(logits: Tensor, wishes: Tensor, cuts: Sequence[int], *, waits: bool = True) -> Drawn:
    """(rows, vocab) by inverse transform, one number a row, sorted by its own needs only. Unless it `waits` for the
    device, draws may be unsettled.

    wishes  as of SamplingTable
    cuts    places that want top-k, top-p or min-p
    """
    if not cuts:
        return Drawn(_invert(_scale(logits, wishes).softmax(dim=-1), wishes[:, 4:]))
    if len(cuts) == len(logits) and waits:
        return Drawn(_draw_ranked(logits, wishes)[0])
    at = send(cuts, logits.device)
    some, own = logits[at], wishes[at]  # copies: logits may be overwritten
    tokens, settled = _draw_ranked(some, own, waits=waits)
    if len(cuts) < len(logits):
        drawn = _invert(_scale(logits, wishes).softmax(dim=-1), wishes[:, 4:])
        tokens = drawn.index_copy_(0, at, tokens)
        settled = None if settled is None else torch.ones_like(drawn, dtype=torch.bool).index_copy_(0, at, settled)
    if settled is None:
        return Drawn(tokens)

    def redraw(place: int) -> int:
        line = slice(index := cuts.index(place), index + 1)
        return int(_draw_sorted(some[line], own[line]))

    return Drawn(tokens, settled, redraw)


def _scale(logits: Tensor, wishes: Tensor) -> Tensor:
    """Below 1e-6, which could overflow, greedy."""
    return logits / wishes[:, :1].to(logits.dtype).clamp_(min=1e-6)


def _draw_ranked(logits: Tensor, wishes: Tensor, *, waits: bool = True) -> tuple[Tensor, Tensor | None]:
    """Without the host, REDRAWN of the unsettled; the mask says which are settled."""
    if logits.shape[-1] <= CANDIDATES:
        return _draw_sorted(logits, wishes), None
    tokens, settled = _draw_likely(logits, wishes, waits=waits)
    most = 1 + len(logits) // REDRAWN
    rest = (~settled).nonzero()[:, 0] if waits else (~settled).to(torch.uint8).topk(most).indices
    if len(rest):
        tokens.index_copy_(0, rest, _draw_sorted(logits[rest], wishes[rest]))
    return tokens, None if waits else settled.index_fill_(0, rest, True)


def _draw_likely(logits: Tensor, wishes: Tensor, *, waits: bool) -> tuple[Tensor, Tensor]:
    """From `CANDIDATES`, and whether the vocabulary gives the same: no ties, a negligible rest, no rounding doubt."""
    # so that ties order as over the vocabulary
    tokens = logits.topk(CANDIDATES, sorted=False).indices.sort(dim=-1).values
    ordered, order = _scale(logits.gather(1, tokens), wishes).sort(dim=-1, descending=True, stable=True)
    tokens, least = tokens.gather(1, order), ordered[:, -1:].clone()
    _cut_min_p_and_top_k(ordered, wishes)
    probabilities = ordered.softmax(dim=-1)
    beyond = probabilities[:, -1] * logits.shape[-1] > DOUBT / 100
    if not waits:
        whole = _scale(logits, wishes).softmax(dim=-1).gather(1, tokens)
        probabilities = torch.where(beyond[:, None], whole, probabilities)
    elif bool(beyond.any()):
        whole = _scale(logits[beyond], wishes[beyond]).softmax(dim=-1)
        probabilities[beyond] = whole.gather(1, tokens[beyond])
    kept, margin = _cut_top_p(probabilities, wishes)
    ends = kept.double().cumsum(dim=-1)
    targets = wishes[:, 4:] * ends[:, -1:]
    places = torch.searchsorted(ends, targets, right=True).clamp_(max=CANDIDATES - 1)
    doubtful = (margin < DOUBT) | ((ends - targets).abs() < DOUBT * ends[:, -1:])
    doubtful |= (kept > 0) & (ordered <= least)
    cut_beyond = beyond & ((wishes[:, 1] > 0) | (wishes[:, 2] > 0))
    return tokens.gather(1, places)[:, 0], ~(doubtful.any(dim=-1) | cut_beyond)


def _draw_sorted(logits: Tensor, wishes: Tensor) -> Tensor:
    ordered, tokens = _scale(logits, wishes).sort(dim=-1, descending=True, stable=True)
    _cut_min_p_and_top_k(ordered, wishes)
    kept, _ = _cut_top_p(ordered.softmax(dim=-1), wishes)
    return tokens.gather(1, _invert(kept, wishes[:, 4:])[:, None])[:, 0]


def _invert(probabilities: Tensor, numbers: Tensor) -> Tensor:
    """First place of (rows, vocab) where the cumulative probability exceeds (rows, 1), within one `BLOCK`."""
    vocab = probabilities.shape[-1]
    whole = F.pad(probabilities, (0, -vocab % BLOCK)) if vocab % BLOCK else probabilities
    blocks = whole.reshape(len(numbers), -1, BLOCK)
    ends = blocks.sum(dim=-1).double().cumsum(dim=-1)
    targets = numbers * ends[:, -1:]
    found = torch.searchsorted(ends, targets, right=True).clamp_(max=ends.shape[-1] - 1)
    before = F.pad(ends, (1, 0)).gather(1, found)
    within = blocks.gather(1, found[:, :, None].expand(-1, 1, BLOCK))[:, 0].double().cumsum(dim=-1)
    # rounding: never beyond the last probability
    rest = torch.minimum(targets - before, within[:, -1:] * (1 - 2**-50))
    places = found * BLOCK + torch.searchsorted(within, rest, right=True)
    return places[:, 0].clamp_(max=vocab - 1)


def _cut_min_p_and_top_k(ordered: Tensor, wishes: Tensor) -> None:
    """In place; `ordered` (rows, some) descends."""
    ordered.masked_fill_(ordered < ordered[:, :1] + wishes[:, 1:2].to(ordered.dtype).log(), -torch.inf)
    most, places = wishes[:, 2:3], torch.arange(ordered.shape[-1], device=ordered.device)
    ordered.masked_fill_((most > 0) & (places >= most), -torch.inf)


def _cut_top_p(probabilities: Tensor, wishes: Tensor) -> tuple[Tensor, Tensor]:
    before = probabilities.cumsum(dim=-1) - probabilities
    mass = wishes[:, 3:4].to(probabilities.dtype)
    drops = (before >= mass) & (before > 0) & (mass < 1)
    margin = (before - mass).abs().masked_fill_((mass >= 1) | (probabilities == 0), torch.inf)
    return probabilities.masked_fill(drops, 0.0), margin
