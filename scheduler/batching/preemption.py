"""When running rows are preempted, keeping tokens and KV caches."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import inf

from engine.messages import RowId
from scheduler.batching.memory import Memory
from scheduler.remaining_length import remaining_length
from scheduler.request import BACKGROUND, Request
from scheduler.serving_time.machine import MachineModel
from scheduler.waiting.sorted_requests import Keys
from scheduler.worker import Worker

# (executor, waiting, best first, now) -> rows
Preemption = Callable[[Worker, Iterable[Request], float], Sequence[RowId]]

EARLY = 0.8  # C of TRAIL (2410.01035)


@dataclass(frozen=True, slots=True)
class ByPriority:
    """Worse rows, if better requests then fit (Baton)."""

    memory: Memory

    def __call__(self, worker: Worker, waiting: Iterable[Request], now: float) -> Sequence[RowId]:
        rows = sorted(worker.requests.values(), key=lambda row: row.priority)
        staying = found = len(rows)
        longest = 0
        for count, request in enumerate(waiting, start=1):
            longest = max(longest, self.memory.length(request))
            while not (fits := self._fits(worker, rows[:staying], count, longest)):
                if not staying or rows[staying - 1].priority <= request.priority:
                    break
                staying -= 1
            if not fits:
                break
            found = staying
        return tuple(row.row_id for row in rows[found:])

    def _fits(self, worker: Worker, staying: Sequence[Request], count: int, longest: int) -> bool:
        left = replace(worker, requests={row.row_id: row for row in staying})
        return left.rows + count <= worker.info.max_rows and self.memory(left, count, longest)


@dataclass(frozen=True, slots=True)
class ByOrder:
    """Takes the slot of a worse row after a slice, so that copies stay cheap."""

    key: Keys
    slice_length: int
    early: float = inf  # progress up to which rows are preempted

    def __call__(self, worker: Worker, waiting: Iterable[Request], now: float) -> Sequence[RowId]:
        first, rows = next(iter(waiting), None), [] if worker.pausing else worker.requests.values()
        served = (
            row
            for row in rows
            if row.generated - worker.assignments[row.row_id].before[row] >= self.slice_length
            and row.generated < self.early * (row.predicted_length or row.sampling.max_tokens)
        )
        last = max(served, key=lambda row: self.key(row, now), default=None)
        if first is None or last is None or self.key(last, now) <= self.key(first, now):
            return ()
        return (last.row_id,)


# progress up to which rows are preempted; None: never
PREEMPTIONS: Mapping[str, float | None] = {"none": None, "by-order": inf, "by-order-early": EARLY}


@dataclass(frozen=True, slots=True)
class Background:
    """Background rows run beside others while they lengthen steps by at most `share`, each charged with its part of
    an iteration and, over its answer, its prompt.
    """

    share: float
    machine: MachineModel

    def within(self, worker: Worker, ranked: Iterable[Request]) -> Iterator[Request]:
        """The first that may join."""
        held = _background_rows(worker)
        return islice(self._fitting(worker, chain(held, ranked)), len(held), None)

    def __call__(self, worker: Worker, waiting: Iterable[Request], now: float) -> Sequence[RowId]:
        if not (held := _background_rows(worker)):
            return ()
        excess = held[len(list(self._fitting(worker, held))) :]
        return tuple(row.row_id for row in excess if row.row_id not in worker.pausing)

    def _fitting(self, worker: Worker, rows: Iterable[Request]) -> Iterator[Request]:
        others, model = worker.others, self.machine.model
        if not others:
            yield from rows
        elif model is not None:
            columns = max(row.tokens for row in others)
            seconds = self.share * model.iteration(len(others), columns)
            for row in rows:
                answer = row.generated + remaining_length(row)
                seconds -= model.d1 * columns + model.d2 + model.prefill(1, row.input_length) / answer
                if seconds < 0:
                    return
                yield row


def _background_rows(worker: Worker) -> list[Request]:
    return [row for row in worker.requests.values() if row.priority >= BACKGROUND]
