"""Hidden states that a pass leaves behind after one layer, for what is predicted from them."""

from __future__ import annotations

import torch
from torch import Tensor


def choose_layer(layers: int) -> int:
    """The layer, from 1 on, whose hidden states tell most of the answer to come: at two thirds of the depth."""
    return max(1, round(2 * layers / 3))


class HiddenStates:
    """The states of one pass, at the places whose logits are wanted."""

    def __init__(self, layer: int) -> None:
        """`layer`: the layer, from 1 on, after which they are taken."""
        self.layer = layer
        self.values = torch.empty(0)
        """(k, width) in float32, or (rows, new, width) where all logits are wanted; empty before the pass."""

    def take(self, hidden: Tensor, select: tuple[Tensor, Tensor] | None) -> None:
        """Keep what the layer has made of each token, (rows, new, width), at the selected rows and places."""
        self.values = (hidden if select is None else hidden[select]).float()
