"""Penalties on what was said before: for repetition in prompt and answer, for frequency and presence in the answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.row import Row


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
