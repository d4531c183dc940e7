"""How much worse a network foretells text when its weights are kept in fewer bits: its perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from models.network.kv_adapter import PassingStore
from models.network.loader import LoadedModel

SHORTEST = 2
"""Tokens of a text that has one to foretell."""


@dataclass(frozen=True, slots=True)
class Quality:
    """One way to keep the weights."""

    quantization: str
    perplexity: float
    weight_bytes: int
    """What a decode step reads of them."""

    def change(self, plain: Quality) -> float:
        """0.03: three percent worse than `plain`."""
        return self.perplexity / plain.perplexity - 1


def perplexity(model: LoadedModel, texts: Sequence[Sequence[int]], watch: Callable[[], None] = lambda: None) -> float:
    """exp of the mean negative log-likelihood of each token but a text's first; texts of `SHORTEST` tokens or more."""
    total, count = 0.0, 0
    for text in texts:
        total += _surprise(model, text)
        count += len(text) - 1
        watch()
    return math.exp(total / count)


@torch.inference_mode()
def _surprise(model: LoadedModel, text: Sequence[int]) -> float:
    """Sum over a text's tokens but the first of -log p(token | those before)."""
    tokens = torch.tensor([text], device=model.device)
    places = torch.arange(len(text), device=model.device)[None]
    logits = model.forward(tokens, places, None, PassingStore())[0, :-1]
    return F.cross_entropy(logits, tokens[0, 1:], reduction="sum").item()
