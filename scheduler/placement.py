from collections.abc import Callable, Mapping, Sequence

from scheduler.request import State
from scheduler.worker import Worker

Placement = Callable[[Sequence[Worker]], Sequence[Worker]]


def idle_first(workers: Sequence[Worker]) -> Sequence[Worker]:
    """By size, then background rows."""
    if len(workers) < 2:  # asked at each step
        return workers
    return sorted(
        workers, key=lambda one: (len(one.others) / one.info.max_rows, one.rows / one.info.max_rows, one.index)
    )


def round_robin(workers: Sequence[Worker]) -> Sequence[Worker]:
    """Ties by index."""
    return sorted(workers, key=lambda worker: (worker.plans, worker.index))


def max_min(workers: Sequence[Worker]) -> Sequence[Worker]:
    """Least predicted work (max-min; SCLS, 4.5)."""
    return sorted(workers, key=lambda worker: (worker.load, worker.rows, worker.index))


def least_unread(workers: Sequence[Worker]) -> Sequence[Worker]:
    """Fewest prompt tokens that are not read yet, times the batch, by its size (LMetric, OSDI'26)."""

    def score(worker: Worker) -> float:
        unread = sum(one.input_length for one in worker.requests.values() if one.state is State.ASSIGNED)
        return (1 + unread) * worker.rows / worker.info.max_rows

    return sorted(workers, key=lambda worker: (score(worker), worker.index))


PLACEMENTS: Mapping[str, Placement] = {"idle-first": idle_first, "round-robin": round_robin, "max-min": max_min}
