"""The book on what executors have to do: kept by a dispatcher over sliced batches, with estimates that are wrong."""

import asyncio
from dataclasses import replace

import pytest

from engine.messages import Cause, FinishReason, HandedBack, RowId
from scheduler.batching.batcher import BatchLimits
from scheduler.options import Scheduling
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from tests.scheduler.fakes import FakePort, Stage, admitted, port, settle, token

LIMITS = BatchLimits(group_tokens=100, prefill_ahead=0, options=Scheduling(slice_length=4, min_interval=1.0))
WRONG = Bilinear(p1=0.5, p2=0.0, p3=0.0, p4=7.0, d1=0.0, d2=0.0, d3=0.0, d4=100.0)
"""Model of a device that is far slower than any that is played here."""


class Booked(Stage):
    """A stage of the dispatcher's own book on its workers."""

    def __init__(self, *ports: FakePort, strategy: str = "lb") -> None:
        super().__init__(*ports, strategy=strategy, limits=LIMITS, prices=WRONG)

    def submit_all(self, *lengths: int) -> list[Request]:
        return [self.submit(length, most=30) for length in lengths]

    def dispatch_all(self, after: float = 0.0) -> list[list[list[RowId]]]:
        """Rows that each executor is sent, command by command."""
        self.clock.time += after
        self.dispatcher.dispatch()
        return [admitted(one.take()) for one in self.ports]

    def end(self, executor: int, *row_ids: RowId) -> None:
        self.report(*(token(row_id, 5, end=FinishReason.STOP) for row_id in row_ids), executor=executor)

    def end_slice(self, executor: int, *row_ids: RowId) -> None:
        """In which each row made a token."""
        report = self.ports[executor].report(*(token(row_id, 5) for row_id in row_ids))
        self.dispatcher.receive(replace(report, handed_back=(HandedBack(row_ids, Cause.SLICE),)))

    def loads(self) -> list[float]:
        return [worker.load for worker in self.dispatcher.workers]


def estimate(rows: int, length: int) -> float:
    return WRONG.serve(float(rows), float(length), 4.0)


def two(rows: int = 2) -> Booked:
    return Booked(port(0, rows=rows), port(1, rows=rows))


def test_the_longest_batch_goes_to_the_least_loaded() -> None:
    stage = two(rows=1)
    stage.submit_all(2, 20, 10, 40)
    assert stage.dispatch_all() == [[[3], [0]], [[1], [2]]]
    assert stage.loads() == pytest.approx([estimate(1, 40) + estimate(1, 2), estimate(1, 20) + estimate(1, 10)])


def test_a_load_is_what_is_not_finished_and_nothing_is_left_of_it_in_the_end() -> None:
    stage = two()
    stage.submit_all(4, 4, 8, 8)
    assert stage.dispatch_all() == [[[2, 3]], [[0, 1]]]
    stage.end(0, 2)
    assert stage.loads() == pytest.approx([estimate(2, 8), estimate(2, 4)]), "the batch goes on"
    stage.end_slice(0, 3)
    assert stage.loads() == pytest.approx([0.0, estimate(2, 4)])
    stage.end(1, 0, 1)
    assert stage.loads() == [0.0, 0.0]


async def test_the_loop_arranges_again_when_the_interval_has_passed() -> None:
    stage = two()
    running = asyncio.create_task(stage.dispatcher.run())
    for _ in range(2):
        stage.submit_all(4)
        await settle()
    assert [admitted(one.take()) for one in stage.ports] == [[[0]], [[1]]]
    assert stage.clock.time == LIMITS.options.min_interval, "it asked to be woken then, and nothing else happened"
    running.cancel()
