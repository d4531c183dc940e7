"""The prefix cache's blocks on a device: the memory they take, and when they are copied from the host's."""

from collections.abc import Callable
from typing import cast

import pytest
import torch

from engine.kv.device_blocks import DeviceBlocks
from engine.kv.row_kv import RowKv
from tests.engine.streams import Part, Stream

BLOCK = 2 * 2 * 3 * 4 * 5 * 4
"""Bytes of a block of four tokens."""


def kv_of(tokens: int) -> RowKv:
    return RowKv(*torch.arange(2.0 * 2 * 3 * tokens * 5).view(2, 2, 3, tokens, 5))


@pytest.fixture
def copied_in(monkeypatch: pytest.MonkeyPatch) -> list[RowKv]:
    """The blocks that were copied from host memory to what stands in for a device."""
    found: list[RowKv] = []

    def copy(block: RowKv, device: torch.device) -> RowKv:
        found.append(block)
        return RowKv(block.keys.clone(), block.values.clone())

    monkeypatch.setattr(RowKv, "to", copy)
    return found


def test_blocks_are_copied_in_once_they_had_to_go(copied_in: list[RowKv]) -> None:
    blocks, kv = DeviceBlocks(torch.device("cpu"), 2 * BLOCK), kv_of(12)
    made = [blocks.make(kv, slice(place, place + 4)) for place in (0, 4, 8)]
    assert blocks.bytes == 2 * BLOCK
    for place in (1, 2, 0, 2, 1, 0):
        there = blocks.read(made[place])
        assert torch.equal(there.keys, kv.keys[:, :, 4 * place : 4 * place + 4])
        assert torch.equal(there.values, kv.values[:, :, 4 * place : 4 * place + 4])
        assert blocks.bytes == 2 * BLOCK
    assert [made.index(one) for one in copied_in] == [0, 1, 0]


def test_memory_is_given_back_at_once(copied_in: list[RowKv]) -> None:
    blocks = DeviceBlocks(torch.device("cpu"), 9 * BLOCK)
    made = blocks.make(kv_of(4), slice(4))
    blocks.read(made)
    assert copied_in == []
    blocks.clear()
    assert blocks.bytes == 0
    blocks.read(made)
    assert copied_in == [made] and blocks.bytes == BLOCK


def test_where_host_memory_is_the_devices_nothing_is_kept_twice() -> None:
    blocks = DeviceBlocks(torch.device("cpu"))
    made = blocks.make(kv_of(8), slice(4))
    assert blocks.read(made).keys is made.keys and blocks.bytes == blocks.capacity == 0


def test_a_part_of_the_memory_that_is_free_on_a_gpu_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * 2**30, 80 * 2**30))
    assert DeviceBlocks(torch.device("cuda:1")).capacity == 2 * 2**30


def test_a_block_goes_to_host_memory_in_one_stream_and_is_read_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's memory may be given away once both are done with it."""
    log: list[str] = []

    def to_host(part: Part, *, wait: bool) -> Part:
        assert part.is_cuda and not wait
        log.append("to host")
        return Part(is_cuda=False)

    monkeypatch.setattr("engine.kv.device_blocks.to_host", to_host)
    monkeypatch.setattr(torch, "stack", lambda parts: Part(parts[0].is_cuda))
    blocks = DeviceBlocks(torch.device("cuda"), 6)
    use(monkeypatch, Stream("side", log))
    prompts = [RowKv(*cast("list[torch.Tensor]", [Part(is_cuda=True), Part(is_cuda=True)])) for _ in range(2)]
    first, other = (blocks.make(prompt, slice(4)) for prompt in prompts)
    assert log == ["to host", "side records"] * 2 and first.in_host_memory
    use(monkeypatch, Stream("prefill", log))
    there = [blocks.read(block) for block in (other, first)]
    assert log[4:] == ["prefill waits for event of side"] * 2
    assert streams_of(prompts) == [["side"]] * 4 and streams_of(there) == [["prefill"]] * 4


def streams_of(kvs: list[RowKv]) -> list[list[str]]:
    """The streams that hold the memory of each part."""
    return [cast(Part, part).streams for kv in kvs for part in (kv.keys, kv.values)]


def use(monkeypatch: pytest.MonkeyPatch, stream: Stream) -> None:
    current: Callable[[torch.device], Stream] = lambda device: stream  # noqa: E731
    monkeypatch.setattr(torch.cuda, "current_stream", current)
