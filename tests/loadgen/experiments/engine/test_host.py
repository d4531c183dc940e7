"""The host's time by part, of this checkout and beside another."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadgen.experiments.engine import host


def test_a_step_is_timed_by_part_in_a_process_of_its_own() -> None:
    found = host.measure_steps([2])
    assert list(found) == ["2 greedy", "2 sampled"]
    for parts in found.values():
        whole, *some = parts.values()
        assert list(parts) == ["all", "inputs", "sampling", "tokens", "rows"]
        assert min(some) > 0 and sum(some) < 1.5 * whole


def test_checkouts_take_turns_and_medians_are_told_with_their_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    sides, there = list[Path](), Path("/other")

    def steps(rows: Sequence[int], side: Path) -> dict[str, dict[str, float]]:
        sides.append(side)
        return {"4 greedy": {"all": 30.0 if side == there else 10.0 + len(sides)}}

    monkeypatch.setattr(host, "measure_steps", steps)
    monkeypatch.setattr(host, "measure_host", lambda count, checkout: {"loop_us": 8.0 if checkout == there else 4.0})
    lines = [line.split() for line in host.compare([4], there, 3)]
    assert sides == [host.ROOT, there, there, host.ROOT, host.ROOT, there]
    assert lines[0] == ["4", "greedy", "rows,", "us", "a", "step", "all", "14.00", "30.00", "0.47"]
    assert lines[1] == ["4", "streams", "loop_us", "4.00", "8.00", "0.50"]
    assert [line.split()[-1] for line in host.compare([4], None, 1)] == ["17.00", "4.00"]


def test_an_answer_ends_with_its_last_chunk_however_it_is_cut_into_reads() -> None:
    """A header that ended in 0 ended an answer, and an end that came as two reads did not."""
    ended = asyncio.Event()
    stream = host.Stream(ended)
    ends = list[bool]()
    for part in (b"HTTP/1.1 200 OK\r\nX-Place: 0\r\n\r\n", b"9\r\ndata: [\n\n\r\n", b"0\r\n", b"\r\n"):
        stream.data_received(part)
        ends.append(ended.is_set())
    assert ends == [False, False, False, True] and stream.events == 1 and stream.first is not None
