"""Where work goes: which executor gets the next plan, and which of several nodes, each a whole server, a request.

A node tells its load now and then, a router sends requests all the time: work left is what the node told, less the
seconds since, and what was sent to it since, with the request itself. The beginnings of prompts that were sent to a
node cost nothing to read there. Nodes of different speed thus get work by seconds. It knows no network; time is passed
in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from types import MappingProxyType
from typing import Generic, TypeAlias, TypeVar

from scheduler.plan import Worker
from scheduler.waiting.prices import Prices, device_prices

Placement: TypeAlias = Callable[[Sequence[Worker]], Sequence[Worker]]


def idle_first(workers: Sequence[Worker]) -> Sequence[Worker]:
    """The executor with the fewest rows for its size first; those in the background only part ties."""
    return sorted(
        workers, key=lambda one: (len(one.others) / one.info.max_rows, one.rows / one.info.max_rows, one.info.index)
    )


def round_robin(workers: Sequence[Worker]) -> Sequence[Worker]:
    """In turn, whatever they have to do: the executor that was given the fewest plans first; ties by index."""
    return sorted(workers, key=lambda worker: (worker.plans, worker.info.index))


def max_min(workers: Sequence[Worker]) -> Sequence[Worker]:
    """The executor with the least predicted work first; ties by rows, then by index (SCLS, section 4.5).

    Batches that come longest first then go where the algorithm has them: the longest to the least loaded.
    """
    return sorted(workers, key=lambda worker: (worker.load, worker.rows, worker.info.index))


PLACEMENTS: Mapping[str, Placement] = MappingProxyType(
    {"idle-first": idle_first, "round-robin": round_robin, "max-min": max_min}
)


Name = TypeVar("Name", bound=Hashable)

REMEMBERED = 65536
"""Blocks of prompts that are remembered of a node, the latest used."""

LENGTH = 256.0
"""Tokens of an answer while nothing is known of any."""


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """The load of a node, as the node tells it to routers."""

    at: float
    """When it told, in seconds of a clock that nodes and routers share."""
    work: float
    """Seconds of the node for all that it has to do."""
    prices: Prices
    """Prices of rows there, its executors together; so `unit` is seconds of the node."""
    requests: int = 0
    """Requests that it has and has not answered."""
    slots: int = 1
    """Rows that it runs at a time."""
    length: float | None = None
    """Tokens of its recent answers, on the average; None before the first."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request as a router knows it: its tokens, and the beginnings of its prompt."""

    prompt_tokens: int
    output_tokens: float | None = None
    """Predicted; None: as many as recent answers had."""
    prefixes: tuple[int, ...] = ()
    """A digest of each beginning of the prompt that is some blocks long, the shortest first."""


def list_prefixes(prompt: Sequence[Hashable] | bytes, block: int) -> tuple[int, ...]:
    """Digests of the beginnings of a prompt, each a block longer than the one before; equal only in this process."""
    found, digest = [], 0
    for end in range(block, len(prompt) + 1, block):
        digest = hash((digest, prompt[end - block : end]))
        found.append(digest)
    return tuple(found)


@dataclass(slots=True)
class _Node:
    """A node as a router knows it: its load, and the requests sent to it since."""

    load: NodeLoad
    """The load that the node told last."""
    sent: list[tuple[float, float]] = field(default_factory=list)
    """When each request was sent there since it told its load, and the seconds that it takes."""
    jobs: int = 0
    """Requests sent there in all."""
    prefixes: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def own_work(self, job: Job) -> float:
        """Seconds of the node for a request."""
        prices, lengths = self.load.prices, (job.output_tokens, self.load.length, LENGTH)
        length = next(one for one in lengths if one is not None)
        kept = sum(1 for _ in takewhile(self.prefixes.__contains__, job.prefixes)) / max(1, len(job.prefixes))
        return prices.unit * prices.price(round(job.prompt_tokens * (1 - kept)), job.prompt_tokens, length)

    def work_left(self, job: Job, now: float) -> float:
        """Seconds of the node for all that it has and a request."""
        told = max(0.0, self.load.work - (now - self.load.at))
        return told + sum(seconds for _, seconds in self.sent) + self.own_work(job)

    def send(self, job: Job, now: float) -> None:
        """Take note that a request was sent there."""
        self.sent.append((now, self.own_work(job)))
        self.jobs += 1
        for prefix in job.prefixes:
            self.prefixes[prefix] = None
            self.prefixes.move_to_end(prefix)
        while len(self.prefixes) > REMEMBERED:
            self.prefixes.popitem(last=False)


class WorkRouter(Generic[Name]):
    """Ranks nodes, whatever names them, by the work that they would have left with a request."""

    def __init__(self) -> None:
        self._nodes: dict[Name, _Node] = {}

    def keep_only(self, names: Iterable[Name]) -> None:
        """Forget all nodes but these."""
        self._nodes = {name: self._node(name) for name in names}

    def tell(self, name: Name, load: NodeLoad) -> None:
        """Take note of what a node tells; older news changes nothing."""
        if load.at > (node := self._node(name)).load.at:
            node.load, node.sent = load, [one for one in node.sent if one[0] > load.at]  # the rest is part of it

    def rank(self, names: Iterable[Name], job: Job, now: float) -> list[Name]:
        """These nodes, the best for a request first; of equals the one that was sent the fewest requests."""
        nodes = {name: self._node(name) for name in names}
        return sorted(nodes, key=lambda name: (nodes[name].work_left(job, now), nodes[name].jobs))

    def note_sent(self, name: Name, job: Job, now: float) -> None:
        """Take note that a request was sent to a node."""
        self._node(name).send(job, now)

    def _node(self, name: Name) -> _Node:
        """The node of that name; one that has told nothing is idle, and as fast and large as another."""
        if name not in self._nodes:
            other = next((node.load for node in self._nodes.values()), NodeLoad(-inf, 0.0, device_prices()))
            self._nodes[name] = _Node(replace(other, at=-inf, work=0.0))
        return self._nodes[name]
