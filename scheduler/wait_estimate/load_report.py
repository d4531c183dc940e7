"""A server's load, for routers."""

from collections.abc import Iterable
from dataclasses import replace

from scheduler.remaining_length import remaining_length
from scheduler.wait_estimate.node_router import LENGTH, NodeLoad
from scheduler.waiting.prices import Prices
from scheduler.waiting.sorted_requests import QueueAhead
from scheduler.worker import Worker


def report_load(
    now: float, workers: Iterable[Worker], prices: Prices, waiting: QueueAhead, length: float | None
) -> NodeLoad:
    """What waits counts by its means: ten thousand take 20 ms one by one. `length` of recent answers."""
    live = [worker for worker in workers if not worker.lost]
    prices = replace(prices, unit=prices.unit / max(1, len(live)))
    held = [request for worker in live for request in worker.requests.values()]
    work = sum(prices.work_left(request, remaining_length(request, length)) for request in held)
    if waiting.place:
        read, left = waiting.unread / waiting.place, waiting.tokens + waiting.unpredicted * (length or LENGTH)
        work += waiting.place * prices.price(read, read, left / waiting.place)
    slots = max(1, sum(worker.port.info.max_rows for worker in live))
    return NodeLoad(now, prices.unit * work, prices, len(held) + waiting.place, slots, length)
