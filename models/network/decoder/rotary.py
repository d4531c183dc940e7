"""Rotary positions (Su et al., RoFormer, section 3.2.2), from a table that the network's own rotary module computed.

Every scaled kind is thus what transformers makes of it, its attention factor included, as far as it does not change
with the length of a batch; what does is bounded by the context, where `models.network.loader` ends it.

    one line of the table        cos of half a head | sin of half a head
    a head, turned               [a b] -> [a b] * [cos cos] + [b a] * [-sin sin]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.network.decoder.family import NotOfFamily


class Rotation(NamedTuple):
    """Factors for the tokens of one pass, each (rows, 1, new, head_dim)."""

    cos: Tensor
    sin: Tensor

    def turn(self, heads: Tensor) -> Tensor:
        """Turn `heads` (rows, heads, new, head_dim) in place."""
        swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
        return heads.mul_(self.cos).addcmul_(swapped, self.sin)


class Rotary(nn.Module):
    """Rotations by position."""

    table: Tensor

    def __init__(self, rotary: nn.Module, embeddings: Tensor, positions: int, head_dim: int) -> None:
        """Raises NotOfFamily where pairs are not half a head apart.

        rotary      transformers' module: (embeddings, positions) -> cos and sin, each (1, positions, turned)
        embeddings  a tensor of the dtype and on the device in which the network computes
        positions   how many there may be
        """
        super().__init__()
        cos, sin = rotary(embeddings, torch.arange(positions, device=embeddings.device)[None])
        turned = cos.shape[-1]
        half = turned // 2
        apart = cos.shape == (1, positions, turned) and bool((cos[..., :half] == cos[..., half:]).all())
        if not apart or turned % 2 or turned > head_dim:
            raise NotOfFamily("it turns pairs of another kind")
        still = (head_dim - turned) // 2
        parts = (cos[0, :, :half], cos.new_ones(positions, still), sin[0, :, :half], sin.new_zeros(positions, still))
        self.register_buffer("table", torch.cat(parts, dim=-1))
        self._turned = turned

    @property
    def positions(self) -> int:
        """How many positions there may be."""
        return len(self.table)

    def pair_order(self, head_dim: int) -> list[int] | None:
        """The order of a head's numbers in which pairs are half a head apart; None for the order that they have.

        Partial rotation turns the first `turned` numbers only. Queries and keys in another order have the same product.
        """
        half, end = self._turned // 2, (head_dim + self._turned) // 2
        order = [*range(half), *range(self._turned, end), *range(half, self._turned), *range(end, head_dim)]
        return None if self._turned == head_dim else order

    def gather(self, positions: Tensor) -> Rotation:
        """The rotation of each token; positions are (rows, new)."""
        cos, sin = self.table[positions].unsqueeze(1).chunk(2, dim=-1)
        return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((sin.neg(), sin), dim=-1))
