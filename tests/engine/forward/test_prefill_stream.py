"""The stream of prefill beside that of decode steps, with stand-ins for what only a CUDA device has."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import pytest
import torch

from engine.forward.prefill_stream import PrefillStream
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from tests.engine.rows import device_of, lifecycle_of, spec
from tests.engine.streams import Part, Stream
from tests.tiny import Net


def test_what_is_fetched_is_awaited_by_the_decode_stream_and_recorded_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows joined while their K and V were still on their way."""
    log: list[str] = []
    decode = Stream("decode", log)

    @contextmanager
    def within(stream: Stream) -> Iterator[None]:
        log.append(f"in {stream.name}")
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("prefill", log))
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: decode)
    stream = PrefillStream(torch.device("cuda:1"))
    kv = stream.fetched(RowKv(*cast("list[torch.Tensor]", [Part(log=log), Part(log=log)])))
    assert log == ["in prefill", "copy", "copy", "prefill records"]
    assert [cast(Part, part).streams for part in (kv.keys, kv.values)] == [["decode"], ["decode"]]
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
    reader = Stream("reader", log)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: reader)
    lifecycle.table.admit([replace(spec(0, 9), row_id=1)])
    lifecycle.turn()
    lifecycle.turn()
    assert log[2:4] == ["reader waits for a copy"] * 2
