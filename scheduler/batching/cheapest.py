"""Requests join the running batch as slots free, the cheapest first (design, 4.4): the join batcher with the line of
turns.py, and with no more rows than it takes to keep the device busy."""

from __future__ import annotations

from scheduler.batching.batcher import Kit, Limits
from scheduler.batching.continuous import ContinuousBatcher, all_slots
from scheduler.waiting.promised import PromisedQueue
from scheduler.waiting.work import enough_rows
from scheduler.worker import Worker


def join_cheapest(kit: Kit) -> ContinuousBatcher:
    """A batcher. Only a profile can tell it that fewer rows are enough."""

    def line(kit: Kit) -> PromisedQueue:
        return PromisedQueue(kit.work, kit.limits.patience, kit.limits.aging)

    def most_rows(worker: Worker, limits: Limits) -> int:
        """Where memory runs out before slots do, all rows that fit are wanted; else as many as are enough, and none
        that wait prefilled: they would have been chosen before cheaper ones came."""
        columns = worker.info.context_length / 2
        if kit.serving_time is None or worker.info.max_rows * columns > worker.capacity_tokens:
            return all_slots(worker, limits)
        enough = enough_rows(kit.serving_time, columns, worker.info.max_rows)
        return enough if enough < worker.info.max_rows else all_slots(worker, limits)

    return ContinuousBatcher(kit, line=line, most_rows=most_rows)
