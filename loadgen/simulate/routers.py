"""Routers before simulated nodes. Knows no strategy, and of a node only what it tells."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from scheduler.placement.nodes import Job, NodeLoad, WorkRouter

PERIOD = 1.0
"""Seconds between two times that nodes tell their load, as the router behind Ray Serve is told."""


class Target(Protocol):
    """The part of a node that a router sees."""

    @property
    def requests(self) -> int: ...
    def load(self) -> NodeLoad: ...


class Router(Protocol):
    """Chooses a node for each request as it comes."""

    due: float
    """When it wants to look at the nodes, on the clock."""

    def look(self, nodes: Sequence[Target], now: float) -> None: ...
    def choose(self, nodes: Sequence[Target], job: Job, now: float) -> int: ...


class RoundRobin:
    """One node after another."""

    due = math.inf

    def __init__(self) -> None:
        self._next = 0

    def look(self, nodes: Sequence[Target], now: float) -> None:
        pass

    def choose(self, nodes: Sequence[Target], job: Job, now: float) -> int:
        chosen, self._next = self._next % len(nodes), self._next + 1
        return chosen


class PowerOfTwo:
    """The node with fewer requests of two that are drawn, as Ray Serve does by default; it is told them at once."""

    due = math.inf

    def __init__(self) -> None:
        self._random = random.Random(0)

    def look(self, nodes: Sequence[Target], now: float) -> None:
        pass

    def choose(self, nodes: Sequence[Target], job: Job, now: float) -> int:
        drawn = self._random.sample(range(len(nodes)), min(2, len(nodes)))
        return min(drawn, key=lambda index: nodes[index].requests)


class ByWork:
    """The node with the least predicted work left (scheduler/placement/nodes.py)."""

    def __init__(self) -> None:
        self.due = 0.0
        self._router: WorkRouter[int] = WorkRouter()

    def look(self, nodes: Sequence[Target], now: float) -> None:
        self.due = now + PERIOD
        for index, node in enumerate(nodes):
            self._router.tell(index, node.load())

    def choose(self, nodes: Sequence[Target], job: Job, now: float) -> int:
        chosen = self._router.rank(range(len(nodes)), job, now)[0]
        self._router.note_sent(chosen, job, now)
        return chosen


ROUTERS: Mapping[str, Callable[[], Router]] = MappingProxyType(
    {"work": ByWork, "pow2": PowerOfTwo, "round-robin": RoundRobin}
)
