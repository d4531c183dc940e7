"""Requests whose work is what they are predicted to generate, for tests of orders."""

from itertools import islice
from typing import Any

from scheduler.programs.program import LEVELS, Kind, Program
from scheduler.request import Request
from scheduler.waiting.by_length import Aging
from scheduler.waiting.order import Order
from scheduler.waiting.prices import Prices
from scheduler.waiting.queue import RankedQueue
from tests.scheduler.fakes import request

AGING = Aging(seconds_per_token=1.0)
TOKENS = Prices(prompt=0.0, entry=0.0, token=1.0, cell=0.0)


def by_tokens() -> Prices:
    """The prices at which a request's work is what it is predicted to generate."""
    return TOKENS


def predicted(row_id: int, length: float | None, *, arrival: float | None = None, **others: Any) -> Request:
    """A request of so many predicted tokens, which comes at the second of its number."""
    came = float(row_id) if arrival is None else arrival
    return request(row_id, arrival=came, max_tokens=100_000, predicted_length=length, **others)


def program(arrival: float = 0.0, service: float = 0.0, rest: float = 0.0, tokens: int = 0) -> Program:
    """One that has so much behind it, and is expected to go on for one turn of `rest`."""
    kind = Kind(went_on=[1e6] + [0.0] * (LEVELS - 1), ended=[1e6] * LEVELS, work=rest)
    return Program("", kind, arrival, turns=1, open=1, service=service, tokens=tokens)


def fill(queue: RankedQueue, *requests: Request) -> RankedQueue:
    for one in requests:
        queue.add(one)
    return queue


def queue_by(order: Order, *requests: Request) -> RankedQueue:
    return fill(RankedQueue(order, AGING), *requests)


def first(queue: RankedQueue, count: int = 9, now: float = 0.0) -> list[int]:
    return [one.row_id for one in islice(queue.ranked(now), count)]


def serve(queue: RankedQueue, row_id: int) -> None:
    queue.serve(next(one for one in queue if one.row_id == row_id))
