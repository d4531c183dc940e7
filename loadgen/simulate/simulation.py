"""The real dispatcher over simulated executors on a virtual clock: what becomes of a trace under a strategy.

Time goes from one event to the next: an arrival, the end of an executor's work, a moment at which the batcher wants to
be asked. Without random numbers, so equal inputs give equal results. Knows no file, no table and no strategy by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

from engine.kv.prefix_cache import CHUNK
from engine.messages import FinishReason, RowUpdate, Tally
from engine.sampling.params import SamplingParams
from engine.simulated.executor import Usage
from engine.simulated.machine import Machine
from loadgen.client.request import Foretold
from loadgen.simulate.node import Node, Note, RoundRobin, Router, VirtualClock
from loadgen.simulate.prediction import Predict, split_forecast
from loadgen.workload.lengths import Lengths
from models.errors import UserError
from scheduler.assembly import Parts
from scheduler.placement import Job, list_prefixes
from scheduler.request import Request, State
from scheduler.stream import TokenStream
from scheduler.wait_estimate.expected_wait import length_interval


@dataclass(frozen=True, slots=True)
class Conversations:
    """Which requests of a trace follow others: so many in a row are the turns of one conversation."""

    turns: int = 1
    think_time: float = 0.0
    """Seconds between an answer and the turn that follows it; only first turns come at a time of their own."""


SINGLE = Conversations()


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes beside the first one, and the router before them all."""

    others: tuple[tuple[Parts, Machine], ...] = ()
    router: Callable[[], Router] = RoundRobin


ALONE = Cluster()


@dataclass(frozen=True, slots=True)
class Served:
    """The outcome of one request; times in seconds after the start of its run."""

    arrival: float
    started: float
    """When the prompt began to be read."""
    first_token: float
    end: float
    input_length: int
    output_length: int
    """Tokens of its answer."""
    runs: int
    """Times that it was given to an executor: its slices, where a strategy slices."""
    predicted_length: float | None
    completed: bool = True
    """False when it failed."""
    cached_prompt: int = 0
    """Tokens of its prompt that were kept from earlier ones."""
    foretold: Foretold | None = None
    """When its end was expected as it came."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The work of one executor."""

    completion: float
    """When it finished its last work, in seconds after the start."""
    prefill: float
    """Seconds spent reading prompts."""
    decode: float
    """Seconds spent on decode iterations."""
    row_decode: float
    """The sum of its rows' seconds in decode; divided by `decode`, its mean batch size."""
    tally: Tally


@dataclass(frozen=True, slots=True)
class Simulation:
    """A trace served from its first request to its last."""

    requests: tuple[Served, ...]
    """The requests in order of arrival."""
    workers: tuple[WorkerRecord, ...]

    @property
    def duration(self) -> float:
        """Seconds from the first arrival to the last answer."""
        return max(one.end for one in self.requests) - self.requests[0].arrival

    @property
    def throughput(self) -> float:
        """Requests a second over the duration, where all were answered."""
        return len(self.requests) / self.duration


Watch = Callable[[int], None]
"""Called with the number of requests that have ended so far."""


def simulate(
    parts: Parts,
    machine: Machine,
    trace: Sequence[Lengths],
    max_tokens: int,
    watch: Watch | None = None,
    predict: Predict | None = None,
    conversations: Conversations = SINGLE,
    cluster: Cluster = ALONE,
    note: Note | None = None,
) -> Simulation:
    """Serve the trace to its end; `max_tokens` is what every request asks for, whatever it will generate. A
    conversation ends before a turn that no executor could hold. Executors are in the order of their nodes;
    `note` is told what each reports.

    Raises UserError for a trace that is empty or has a request that no executor could hold.
    """
    if not trace:
        raise UserError("there is nothing to simulate: the trace is empty")
    nodes = ((parts, machine), *cluster.others)
    _refuse_long(trace, min((one for _, one in nodes), key=lambda one: one.longest), max_tokens)
    ordered = sorted(trace, key=lambda one: one.arrival)
    return _Simulator(nodes, cluster.router(), ordered, max_tokens, watch, predict, conversations, note).run()


def _refuse_long(trace: Sequence[Lengths], machine: Machine, max_tokens: int) -> None:
    longest = max(trace, key=lambda one: one.input_length + min(one.output_length, max_tokens))
    if longest.input_length + min(longest.output_length, max_tokens) > machine.longest:
        raise UserError(
            f"a request of {longest.input_length} + {longest.output_length} tokens is longer than the "
            f"{machine.longest} that an executor can hold: clip lengths with --max-input-len and --max-output-len, or "
            "raise --max-model-len and --capacity-tokens"
        )


class _Sink(TokenStream):
    """Calls back when an answer ends; its tokens are not kept."""

    def __init__(self, ended: Callable[[FinishReason], None]) -> None:
        self._ended = ended

    def put(self, update: RowUpdate) -> None:
        if update.finish_reason is not None:
            self._ended(update.finish_reason)


class _Simulator:
    """One run, used once."""

    def __init__(
        self,
        nodes: Sequence[tuple[Parts, Machine]],
        router: Router,
        trace: Sequence[Lengths],
        max_tokens: int,
        watch: Watch | None,
        predict: Predict | None,
        conversations: Conversations,
        note: Note | None,
    ) -> None:
        self._clock = VirtualClock()
        self._nodes = [Node(parts, machine, self._clock, note) for parts, machine in nodes]
        self._router = router
        self._conversations = conversations
        self._longest = min(machine.longest for _, machine in nodes)
        self._block = CHUNK if any(machine.prefix_cache_tokens for _, machine in nodes) else None
        self._due = [(one.arrival, place) for place, one in enumerate(trace) if place % conversations.turns == 0]
        """When requests come, and their places in the trace: a heap."""
        self._history: dict[int, int] = {}  # tokens that each conversation has so far
        self._trace = trace
        self._max_tokens = max_tokens
        self._watch = watch
        self._predict = predict
        self._prompts: dict[int, tuple[int, ...]] = {}  # one of each length
        self._requests: list[Request] = []
        self._ended = 0

    def run(self) -> Simulation:
        while self._due or self._ended < len(self._requests):
            self._move()
            now = self._clock.now()
            if self._router.due <= now:
                self._router.look(self._nodes, now)
            self._arrive()
            for node in self._nodes:
                if node.due <= now:
                    node.advance()
        workers = [record for node in self._nodes for record in node.records()]
        return Simulation(
            tuple(served(request) for request in self._requests),
            tuple(_worker_record(usage, tally) for usage, tally in workers),
        )

    @property
    def _next_arrival(self) -> float:
        return self._due[0][0] if self._due else math.inf

    def _move(self) -> None:
        """Move the clock to the next event."""
        time = min(self._next_arrival, min(node.due for node in self._nodes))
        if time == math.inf:
            left = len(self._requests) - self._ended
            raise UserError(f"the strategy leaves {left} requests unserved though nothing else will happen")
        self._clock.move_to(min(time, self._router.due))

    def _arrive(self) -> None:
        while self._next_arrival <= self._clock.now():
            _, place = heappop(self._due)
            one = self._trace[place]
            prompt = self._make_prompt(place)
            sampling = SamplingParams(self._max_tokens, replay_tokens=one.output_length)
            forecast = None if self._predict is None else self._predict(sampling)
            prefixes = () if self._block is None else list_prefixes(prompt, self._block)
            job = Job(len(prompt), split_forecast(forecast)[0], prefixes)
            node = self._nodes[self._router.choose(self._nodes, job, self._clock.now())]
            request = node.submit(prompt, sampling, one.client, forecast)
            request.stream = _Sink(partial(self._note_end, request, place))
            self._requests.append(request)

    def _make_prompt(self, place: int) -> tuple[int, ...]:
        """Tokens without a meaning: those of conversations tell these and their places apart."""
        length, turns = self._trace[place].input_length, self._conversations.turns
        if turns == 1:
            return self._prompts.setdefault(length, (0,) * length)
        conversation = place // turns
        begin = conversation * self._longest
        return tuple(range(begin, begin + self._history.get(conversation, 0) + length))

    def _follow(self, request: Request, place: int) -> None:
        """Let a conversation's next turn come, unless it is over."""
        following, turns = place + 1, self._conversations.turns
        if following % turns == 0 or following == len(self._trace):
            return
        one = self._trace[following]
        self._history[place // turns] = request.tokens
        if request.tokens + one.input_length + min(one.output_length, self._max_tokens) <= self._longest:
            heappush(self._due, (self._clock.now() + self._conversations.think_time, following))

    def _note_end(self, request: Request, place: int, reason: FinishReason) -> None:
        self._ended += 1
        if reason is not FinishReason.ERROR:
            self._follow(request, place)
        if self._watch is not None:
            self._watch(self._ended)


def served(request: Request, origin: float = 0.0) -> Served:
    """The record of a request that has ended; `origin` is when its run began, in seconds of the dispatcher's clock."""
    times = request.times
    end = math.nan if times.end is None else times.end
    return Served(
        arrival=times.arrival - origin,
        started=(end if times.started is None else times.started) - origin,
        first_token=(end if times.first_token is None else times.first_token) - origin,
        end=end - origin,
        input_length=request.input_length,
        output_length=request.generated,
        runs=request.runs,
        predicted_length=request.predicted_length,
        completed=request.state is State.FINISHED,
        cached_prompt=request.cached_prompt,
        foretold=_foretold(request),
    )


def _foretold(request: Request) -> Foretold | None:
    expected, lengths = request.expected, length_interval(request)
    if expected is None or not expected.known:
        return None
    tokens = request.predicted_length if lengths is None else lengths[1]
    return Foretold(expected.low, expected.median, expected.high, expected.wait or 0.0, tokens)


def _worker_record(usage: Usage, tally: Tally) -> WorkerRecord:
    return WorkerRecord(usage.last, usage.prefill, usage.decode, usage.row_decode, tally)
