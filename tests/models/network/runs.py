"""Runs of lengths given as numbers."""

from collections.abc import Sequence

import torch

from models.network.attention import Runs, VarlenAttention


def list_runs(
    starts: Sequence[int], lengths: Sequence[int], longest: int, attention: VarlenAttention, device: torch.device
) -> Runs:
    numbers = ([*starts, 0], lengths, range(len(lengths) + 1))
    first, count, places = (torch.tensor(each, dtype=torch.int32, device=device) for each in numbers)
    return Runs(first, count, places, longest, attention)
