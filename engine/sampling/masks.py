"""Masks of the tokens that rows' grammars allow next, as tensors for the sampler. Knows rows and bits, no grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.row import Row
from engine.sampling.matcher import GrammarFault

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
