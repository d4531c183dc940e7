from collections.abc import Callable, Mapping, Sequence

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
    return sorted(workers, key=lambda worker: (worker.plans, worker.index))


def max_min(workers: Sequence[Worker]) -> Sequence[Worker]:
    """Least predicted work (max-min; SCLS, 4.5)."""
    return sorted(workers, key=lambda worker: (worker.load, worker.rows, worker.index))


def least_unread(workers: Sequence[Worker]) -> Sequence[Worker]:
    """Fewest prompt tokens that are not read yet, then by size."""

    def unread(worker: Worker) -> int:
        return sum(request.unread for request in worker.requests.values())

    return sorted(workers, key=lambda one: (unread(one), one.rows / one.info.max_rows, one.index))


PLACEMENTS: Mapping[str, Placement] = {"idle-first": idle_first, "round-robin": round_robin, "max-min": max_min}
