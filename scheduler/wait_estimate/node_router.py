"""Ranks nodes by reported load, less time since, plus work sent since."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from typing import Generic, TypeVar

from models.recent import Recent
from scheduler.waiting.prices import Prices, device_prices

Name = TypeVar("Name", bound=Hashable)


REMEMBERED = 65536  # prefixes of a node, LRU


LENGTH = 256.0  # default tokens of an answer


@dataclass(frozen=True, slots=True)
class NodeLoad:
    at: float  # shared clock
    work: float  # seconds
    prices: Prices  # of all executors
    requests: int = 0
    slots: int = 1
    length: float | None = None  # of recent answers


@dataclass(frozen=True, slots=True)
class Job:
    prompt_tokens: int
    output_tokens: float | None = None  # None: as recent answers
    prefixes: tuple[int, ...] = ()  # digests of whole blocks, shortest first


def list_prefixes(prompt: Sequence[Hashable] | bytes, block: int) -> tuple[int, ...]:
    """Within this process."""
    found, digest = [], 0
    for end in range(block, len(prompt) + 1, block):
        digest = hash((digest, prompt[end - block : end]))
        found.append(digest)
    return tuple(found)


@dataclass(slots=True)
class _Node:
    load: NodeLoad
    sent: list[tuple[float, float]] = field(default_factory=list)  # (time, seconds of work)
    jobs: int = 0
    prefixes: Recent[int, None] = field(default_factory=lambda: Recent(REMEMBERED))

    def own_work(self, job: Job) -> float:
        """Seconds of the request."""
        prices, lengths = self.load.prices, (job.output_tokens, self.load.length, LENGTH)
        length = next(one for one in lengths if one is not None)
        kept = sum(1 for _ in takewhile(self.prefixes.__contains__, job.prefixes)) / max(1, len(job.prefixes))
        return prices.unit * prices.price(round(job.prompt_tokens * (1 - kept)), job.prompt_tokens, length)

    def work_left(self, job: Job, now: float) -> float:
        """Seconds with the request."""
        told = max(0.0, self.load.work - (now - self.load.at))
        return told + sum(seconds for _, seconds in self.sent) + self.own_work(job)


class WorkRouter(Generic[Name]):
    def __init__(self) -> None:
        self._nodes: dict[Name, _Node] = {}

    def keep_only(self, names: Iterable[Name]) -> None:
        self._nodes = {name: self._node(name) for name in names}

    def tell(self, name: Name, load: NodeLoad) -> None:
        """Ignores older reports."""
        if load.at > (node := self._node(name)).load.at:
            node.load, node.sent = load, [one for one in node.sent if one[0] > load.at]  # in the report

    def rank(self, names: Iterable[Name], job: Job, now: float) -> list[Name]:
        """Ties by requests sent."""
        nodes = {name: self._node(name) for name in names}
        return sorted(nodes, key=lambda name: (nodes[name].work_left(job, now), nodes[name].jobs))

    def note_sent(self, name: Name, job: Job, now: float) -> None:
        node = self._node(name)
        node.sent.append((now, node.own_work(job)))
        node.jobs += 1
        node.prefixes.update(dict.fromkeys(job.prefixes))

    def _node(self, name: Name) -> _Node:
        """Silent nodes count as idle and average."""
        if name not in self._nodes:
            other = next((node.load for node in self._nodes.values()), NodeLoad(-inf, 0.0, device_prices()))
            self._nodes[name] = _Node(replace(other, at=-inf, work=0.0))
        return self._nodes[name]
