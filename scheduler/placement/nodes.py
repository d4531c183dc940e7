"""Which of several nodes, each a whole server, a request goes to: the one that is expected to be done with it first.

A node tells its load now and then, a router sends requests all the time. Let R be the requests that it had at that
moment `at` and those sent to it since, W the seconds that all of these take the node, less those since `at`, and
a = max(0, R + 1 - slots) / R the part of them that waits for a slot. Nodes are ranked by

    a·W  +  a²·own  +  (1 - a²)·(seconds to read the prompt + g·v(min(R + 1, slots)))

for a request of g tokens. While slots are free none waits, and what a token takes depends on how many rows share the
node, v (prices.py), and not on how long they will go on. Where all are taken, it waits for its part of the work; the
more wait, the less it matters how fast its own tokens come there, and the more what it takes of the node, `own`: by its
own speed alone all long requests went to the fastest node, and short ones could not overtake them there. With one slot
this is the least work left, with many and little else that an iteration costs the shortest queue. What the node is
thought to keep, the beginnings of prompts that were sent to it, costs nothing to read. Nodes of different speed thus
get work by seconds. It knows no network; time is passed in.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Generic, TypeVar

from scheduler.waiting.prices import Prices, device_prices

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
    """Seconds until all that it has would be answered, if nothing came."""
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
    sent: deque[tuple[float, float]] = field(default_factory=deque)
    """When each request was sent there since it told its load, and the seconds that it takes."""
    seconds_sent: float = 0.0
    jobs: int = 0
    """Requests sent there in all."""
    prefixes: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def own_work(self, job: Job) -> float:
        """Seconds of the node for a request, while all its slots are taken."""
        prices = self.load.prices
        return prices.unit * prices.price(self._unread(job), job.prompt_tokens, self._length(job))

    def seconds(self, job: Job, now: float) -> float:
        """Seconds by which the node is ranked for a request: until it is done, or more where many wait."""
        load, prices = self.load, self.load.prices
        requests = load.requests + len(self.sent)
        work = max(0.0, load.work - (now - load.at)) + self.seconds_sent
        part = max(0, requests + 1 - load.slots) / max(1, requests)
        read = prices.unit * prices.price(self._unread(job), 0, 0.0)
        length = self._length(job)
        context = job.prompt_tokens + length / 2
        running = read + length * prices.seconds_per_token(min(requests + 1, load.slots), load.slots, context)
        return part * work + part**2 * self.own_work(job) + (1 - part**2) * running

    def _unread(self, job: Job) -> int:
        kept = 0
        while kept < len(job.prefixes) and job.prefixes[kept] in self.prefixes:
            kept += 1
        return round(job.prompt_tokens * (1 - kept / max(1, len(job.prefixes))))

    def _length(self, job: Job) -> float:
        return next((one for one in (job.output_tokens, self.load.length) if one is not None), LENGTH)

    def send(self, job: Job, now: float) -> None:
        """Take note that a request was sent there."""
        seconds = self.own_work(job)
        self.sent.append((now, seconds))
        self.seconds_sent += seconds
        self.jobs += 1
        self.remember(job.prefixes)

    def tell(self, load: NodeLoad) -> None:
        """Take note of its load, of which what was sent before is part."""
        self.load = load
        while self.sent and self.sent[0][0] <= load.at:
            self.sent.popleft()
        self.seconds_sent = sum(seconds for _, seconds in self.sent)

    def remember(self, prefixes: Iterable[int]) -> None:
        for prefix in prefixes:
            self.prefixes[prefix] = None
            self.prefixes.move_to_end(prefix)
        while len(self.prefixes) > REMEMBERED:
            self.prefixes.popitem(last=False)


class WorkRouter(Generic[Name]):
    """Ranks nodes, whatever names them, by when they are expected to be done with a request."""

    def __init__(self) -> None:
        self._nodes: dict[Name, _Node] = {}

    def keep_only(self, names: Iterable[Name]) -> None:
        """Forget all nodes but these."""
        self._nodes = {name: self._node(name) for name in names}

    def tell(self, name: Name, load: NodeLoad) -> None:
        """Take note of what a node tells; older news changes nothing."""
        if load.at > (node := self._node(name)).load.at:
            node.tell(load)

    def rank(self, names: Iterable[Name], job: Job, now: float) -> list[Name]:
        """These nodes, the best for a request first; of equals the one that was sent the fewest requests."""
        nodes = {name: self._node(name) for name in names}
        return sorted(nodes, key=lambda name: (nodes[name].seconds(job, now), nodes[name].jobs))

    def note_sent(self, name: Name, job: Job, now: float) -> None:
        """Take note that a request was sent to a node."""
        self._node(name).send(job, now)

    def _node(self, name: Name) -> _Node:
        """The node of that name; one that has told nothing is idle, and as fast and large as another."""
        if name not in self._nodes:
            other = next((node.load for node in self._nodes.values()), NodeLoad(-inf, 0.0, device_prices()))
            self._nodes[name] = _Node(replace(other, at=-inf, work=0.0, requests=0))
        return self._nodes[name]
