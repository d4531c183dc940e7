"""What is copied between a device and its host, in streams, with stand-ins for what only a CUDA device has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
import torch

from engine.forward.prefill_stream import PrefillStream
from engine.kv.device_blocks import DeviceBlocks
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from tests.calls import note_calls
from tests.engine.rows import device_of, lifecycle_of, spec, turns
from tests.tiny import Net

BLOCK = 2 * 2 * 3 * 4 * 5 * 4
"""Bytes of a block of four tokens."""


@dataclass
class Stream:
    """Notes what is asked of it."""

    name: str
    log: list[str]

    def record_event(self) -> str:
        self.log.append(f"{self.name} records")
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


@dataclass
class Part:
    """A tensor, on a device or in host memory."""

    is_cuda: bool = False
    log: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    nbytes = 3
    shape, dtype, device = (1,), torch.float32, torch.device("cuda")

    def __getitem__(self, _: object) -> Part:
        return self

    def __iter__(self) -> Iterator[Part]:
        return iter((Part(self.is_cuda), Part(self.is_cuda)))

    def to(self, device: torch.device, *, non_blocking: bool) -> Part:
        assert non_blocking and not self.is_cuda
        self.log.append("copy")
        return Part(is_cuda=True)

    def record_stream(self, stream: Stream) -> None:
        self.streams.append(stream.name)


def parts(**what: object) -> RowKv:
    return RowKv(*cast("list[torch.Tensor]", [Part(**what), Part(**what)]))  # type: ignore[arg-type]


def streams_of(*kvs: RowKv) -> list[list[str]]:
    """The streams that hold the memory of each part."""
    return [cast(Part, part).streams for kv in kvs for part in (kv.keys, kv.values)]


def use(monkeypatch: pytest.MonkeyPatch, stream: Stream) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)


def kv_of(tokens: int) -> RowKv:
    return RowKv(*torch.arange(2.0 * 2 * 3 * tokens * 5).view(2, 2, 3, tokens, 5))


@pytest.fixture
def copied_in(monkeypatch: pytest.MonkeyPatch) -> list[RowKv]:
    """The blocks that were copied from host memory to what stands in for a device."""
    return note_calls(monkeypatch, RowKv, "to", lambda block, device: block)


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
    prompts = [parts(is_cuda=True) for _ in range(2)]
    first, other = (blocks.make(prompt, slice(4)) for prompt in prompts)
    assert log == ["to host", "side records"] * 2 and first.in_host_memory
    use(monkeypatch, Stream("prefill", log))
    there = [blocks.read(block) for block in (other, first)]
    assert log[4:] == ["prefill waits for event of side"] * 2
    assert streams_of(*prompts) == [["side"]] * 4 and streams_of(*there) == [["prefill"]] * 4


def test_what_is_fetched_is_awaited_by_the_decode_stream_and_recorded_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows joined while their K and V were still on their way."""
    log: list[str] = []

    @contextmanager
    def within(stream: Stream) -> Iterator[None]:
        log.append(f"in {stream.name}")
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("prefill", log))
    monkeypatch.setattr(torch.cuda, "stream", within)
    use(monkeypatch, Stream("decode", log))
    stream = PrefillStream(torch.device("cuda:1"))
    kv = stream.fetched(parts(log=log))
    assert log == ["in prefill", "copy", "copy", "prefill records"]
    assert streams_of(kv) == [["decode"]] * 2
    assert stream.done, "a chunk is not said to be under way because of a copy"
    stream.await_fetched()
    stream.await_fetched()
    assert log[4:] == ["decode waits for event of prefill"]


def test_a_row_is_taken_out_of_its_group_in_the_stream_that_reads_on(net: Net) -> None:
    """It was taken out in the stream that decodes, for which the next chunk did not wait."""
    log: list[str] = []

    class Recording(PrefillStream):
        def wait(self) -> None:
            log.append("wait")

        @contextmanager
        def working(self) -> Iterator[None]:
            log.append("in")
            yield
            log.append(f"out with {[row.row_id for row in device.prefilling]}")

    lifecycle = lifecycle_of(*net, chunk=8)
    device = device_of(lifecycle)
    lifecycle.table.admit([spec(0, 30), spec(1, 30)])
    lifecycle.turn()
    device._stream = Recording(torch.device("cpu"))
    lifecycle.table.cancel([0])
    assert log == ["wait", "in", "out with [1]"]


def test_a_cpu_has_nothing_to_await() -> None:
    stream, kv = PrefillStream(torch.device("cpu")), RowKv(*torch.zeros(2, 1, 1, 3, 4))
    assert stream.fetched(kv) is kv and stream.done
    stream.await_fetched()


def test_blocks_are_copied_in_their_own_stream_that_readers_await(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill reads a block that may still be on its way, also to another device's prefill."""
    log: list[str] = []
    blocks = PrefixCache[RowKv](1 << 20, chunk=4)
    lifecycle = lifecycle_of(*net, capacity=100, rows=2, chunk=64, prefixes=blocks)

    class Recording(PrefillStream):
        @contextmanager
        def copying(self) -> Iterator[None]:
            log.append("in")
            yield
            log.append(f"out with {len(blocks._children)} blocks")

    device_of(lifecycle)._stream = Recording(torch.device("cpu"))
    lifecycle.table.admit([spec(0, 9)])
    lifecycle.turn()
    assert log == ["in", "out with 2 blocks"]
    for node in blocks._children.values():
        node.block = replace(node.block, copied=cast("torch.cuda.Event", "a copy"))
    use(monkeypatch, Stream("reader", log))
    lifecycle.table.admit([replace(spec(0, 9), row_id=1)])
    turns(lifecycle, 2)
    assert log[2:4] == ["reader waits for a copy"] * 2
