"""Packed layers compute what plain ones do, and only where the kernels for them exist."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from models.packing import PackedLinear, pack, packs

CPU = torch.device("cpu")


@pytest.mark.skipif(not packs(torch.float32, CPU), reason="no packed kernels in this build")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (33, 24), (3, 5, 24), (0, 1, 24)])
def test_a_packed_layer_equals_the_plain_one(bias: bool, shape: tuple[int, ...]) -> None:
    plain = nn.Linear(24, 40, bias=bias).requires_grad_(False)
    inputs = torch.randn(shape)
    torch.testing.assert_close(PackedLinear(plain)(inputs), plain(inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not packs(torch.float32, CPU), reason="no packed kernels in this build")
def test_every_plain_layer_of_a_network_is_packed_at_any_depth_and_no_other() -> None:
    class Special(nn.Linear):
        pass

    network = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), Special(8, 8)), nn.LayerNorm(8))
    network.requires_grad_(False)
    expected = copy.deepcopy(network)(torch.ones(2, 8))
    pack(network)
    kinds = [type(module).__name__ for module in network.modules() if not isinstance(module, nn.Sequential)]
    assert kinds == ["PackedLinear", "PackedLinear", "Special", "LayerNorm"]
    torch.testing.assert_close(network(torch.ones(2, 8)), expected, atol=1e-5, rtol=1e-5)


def test_there_is_no_packing_on_other_devices_or_for_half_precision() -> None:
    assert not packs(torch.float32, torch.device("cuda"))
    assert not packs(torch.float16, CPU)
