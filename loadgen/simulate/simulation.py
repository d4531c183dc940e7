"""The real dispatcher over simulated executors on a virtual clock, and its figures under `bench`'s names.

Event-driven and deterministic.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

from engine.kv.prefix_cache import CHUNK
from engine.messages import FinishReason, RowUpdate
from engine.sampling.params import SamplingParams
from engine.simulated.executor import DeviceUsage
from engine.simulated.machine import Machine
from loadgen.client.request import Foretold
from loadgen.simulate.node import Node, Router, VirtualClock
from loadgen.simulate.prediction import Predict, split_forecast
from loadgen.workload.lengths import RequestLengths
from models.errors import UserError
from scheduler.assembly import SchedulerParts, assemble
from scheduler.batching.batcher import BatchLimits
from scheduler.programs.program import Kind, Program
from scheduler.request import COVERAGE, Request, State
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import Strategy
from scheduler.stream import TokenStream
from scheduler.wait_estimate.node_router import Job, list_prefixes


@dataclass(frozen=True, slots=True)
class Served:
    """Seconds after the run's start."""

    arrival: float
    started: float  # prefill began
    first_token: float
    end: float
    input_length: int
    output_length: int  # tokens
    runs: int  # times given to an executor
    predicted_length: float | None
    completed: bool = True
    cached_prompt: int = 0  # tokens
    foretold: Foretold | None = None  # expected on arrival
    run: str = ""  # an agent's
    promised: float | None = None  # seconds after arrival
    run_within: float | None = None  # seconds, estimated


@dataclass(frozen=True, slots=True)
class Simulation:
    requests: tuple[Served, ...]  # in order of arrival
    workers: tuple[DeviceUsage, ...]

    @property
    def duration(self) -> float:
        return max(one.end for one in self.requests) - self.requests[0].arrival

    @property
    def throughput(self) -> float:
        return len(self.requests) / self.duration


def prices_of(machine: Machine) -> Bilinear:
    assert isinstance(machine.cost, Bilinear), "not every machine has a profile"
    return machine.cost


def fit_parts(strategy: Strategy, limits: BatchLimits, machine: Machine, prices: Bilinear | None) -> SchedulerParts:
    """`prices`: what the scheduler knows of the executors' speed from the start."""
    limits = limits.within(machine.capacity_tokens, machine.context_length, machine.max_num_seqs)
    return assemble(strategy, limits, prices)


Watch = Callable[[int], None]  # called with the number of ended requests


def simulate(
    parts: SchedulerParts,
    machine: Machine,
    trace: Sequence[RequestLengths],
    max_tokens: int | None = None,
    watch: Watch = lambda ended: None,
    predict: Predict | None = None,
    *,
    turns: int = 1,
    think_time: float = 0.0,
    others: Sequence[tuple[SchedulerParts, Machine]] = (),
    router: Router | None = None,
) -> Simulation:
    """Serve the trace to its end; executors in order of their nodes.

        max_tokens   that every request asks for; None: those of the longest answer
        turns        requests of a conversation: each comes `think_time` seconds after the answer before; none that no
                     executor could hold
        others       nodes beside the first, behind the `router` (None: in turn)

    Raises UserError for an empty trace, or a request that no executor could hold.
    """
    if not trace:
        raise UserError("there is nothing to simulate: the trace is empty")
    max_tokens = max_tokens or max(one.output_length for one in trace)
    nodes = ((parts, machine), *others)
    simulator = _Simulator(nodes, trace, max_tokens, turns, think_time, router or Router(), predict, watch)
    _refuse_long(trace, simulator.longest, max_tokens)
    return simulator.run()


def _refuse_long(trace: Sequence[RequestLengths], most: int, max_tokens: int) -> None:
    longest = max(trace, key=lambda one: one.input_length + min(one.output_length, max_tokens))
    if longest.input_length + min(longest.output_length, max_tokens) > most:
        fault = f"a request of {longest.input_length} + {longest.output_length} tokens exceeds the {most} that fit"
        remedy = "lower --max-input-len and --max-output-len, or raise --max-model-len and --capacity-tokens"
        raise UserError(f"{fault}: {remedy}")


def list_following(trace: Sequence[RequestLengths], turns: int) -> Mapping[int, int]:
    """The place of each one's next turn."""
    if turns > 1:
        return {place: place + 1 for place in range(len(trace) - 1) if (place + 1) % turns}
    last, following = dict[str, int](), dict[int, int]()
    for place, one in enumerate(trace):
        if one.run in last:
            following[last[one.run]] = place
        if one.run:
            last[one.run] = place
    return following


class _Sink(TokenStream):
    def __init__(self, ended: Callable[[FinishReason], None]) -> None:
        self._ended = ended

    def put(self, update: RowUpdate) -> None:
        if update.finish_reason is not None:
            self._ended(update.finish_reason)


@dataclass
class _Simulator:
    servers: Sequence[tuple[SchedulerParts, Machine]]
    trace: Sequence[RequestLengths]
    max_tokens: int
    turns: int
    think_time: float
    router: Router
    predict: Predict | None
    watch: Watch

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.nodes = [Node(parts, machine, self.clock) for parts, machine in self.servers]
        self.longest = min(machine.longest for _, machine in self.servers)  # tokens of a request that each can hold
        # tokens of a prefix block that a router remembers
        self.block = CHUNK if any(machine.prefix_cache_tokens for _, machine in self.servers) else None
        self.trace = sorted(self.trace, key=lambda one: one.arrival)
        self.following = list_following(self.trace, self.turns)  # place of the next turn
        begun = set(self.following.values())
        # heap of (time, place in the trace)
        self.due = [(one.arrival, place) for place, one in enumerate(self.trace) if place not in begun]
        self.history: dict[int, int] = {}  # tokens of each conversation
        self.prompts: dict[int, tuple[int, ...]] = {}  # one of each length
        self.kind, self.programs = Kind(), dict[str, Program]()  # by run
        self.requests, self.runs_within = list[Request](), list[float | None]()  # the latter by request
        self.ended = 0

    def run(self) -> Simulation:
        while self.due or self.ended < len(self.requests):
            self._move()
            now = self.clock.now()
            if self.router.due <= now:
                self.router.look(self.nodes, now)
            self._arrive()
            for node in self.nodes:
                if node.due <= now:
                    node.advance()
        ended = zip(self.requests, self.runs_within, strict=True)
        workers = tuple(executor.usage for node in self.nodes for executor in node.executors)
        return Simulation(tuple(served(one, run_within=run) for one, run in ended), workers)

    @property
    def _next_arrival(self) -> float:
        return self.due[0][0] if self.due else math.inf

    def _move(self) -> None:
        time = min(self._next_arrival, min(node.due for node in self.nodes))
        if time == math.inf:
            left = len(self.requests) - self.ended
            raise UserError(f"the strategy leaves {left} requests unserved though nothing else will happen")
        self.clock.move_to(min(time, self.router.due))

    def _arrive(self) -> None:
        now = self.clock.now()
        while self._next_arrival <= now:
            _, place = heappop(self.due)
            one = self.trace[place]
            prompt = self._make_prompt(place)
            sampling = SamplingParams(self.max_tokens, replay_tokens=one.output_length)
            forecast = None if self.predict is None else self.predict(sampling)
            prefixes = () if self.block is None else list_prefixes(prompt, self.block)
            job = Job(len(prompt), split_forecast(forecast)[0], prefixes)
            node = self.nodes[self.router.choose(self.nodes, job, now)]
            program = self.programs.setdefault(one.run, Program(one.run, self.kind, now)) if one.run else None
            request = node.submit(prompt, sampling, forecast, client=one.client, program=program)
            request.stream = _Sink(partial(self._note_end, request, place))
            self.requests.append(request)
            self.runs_within.append(None if program is None else program.end_within(COVERAGE))

    def _make_prompt(self, place: int) -> tuple[int, ...]:
        length, run = self.trace[place].input_length, self.trace[place].run
        if run:
            begin = [*self.programs].index(run) if run in self.programs else len(self.programs)
            return tuple(range(-1 - begin * self.longest, -1 - begin * self.longest - length, -1))
        if self.turns == 1:
            return self.prompts.setdefault(length, (0,) * length)
        conversation = place // self.turns
        begin = conversation * self.longest
        return tuple(range(begin, begin + self.history.get(conversation, 0) + length))

    def _follow(self, request: Request, place: int) -> None:
        if (following := self.following.get(place)) is None:
            return
        one = self.trace[following]
        if one.run:
            heappush(self.due, (self.clock.now() + one.pause, following))
            return
        self.history[place // self.turns] = request.tokens
        if request.tokens + one.input_length + min(one.output_length, self.max_tokens) <= self.longest:
            heappush(self.due, (self.clock.now() + self.think_time, following))

    def _note_end(self, request: Request, place: int, reason: FinishReason) -> None:
        self.ended += 1
        if reason is not FinishReason.ERROR:
            self._follow(request, place)
        self.watch(self.ended)


def served(request: Request, origin: float = 0.0, run_within: float | None = None) -> Served:
    """`origin`: the run's start on the dispatcher's clock."""
    times, expected = request.times, request.expected
    end = math.nan if times.end is None else times.end
    known = None if expected is None or not expected.known else expected
    foretold = None if known is None else Foretold(known.low, known.median, known.high)
    return Served(
        arrival=times.came - origin,
        started=(end if times.started is None else times.started) - origin,
        first_token=(end if times.first_token is None else times.first_token) - origin,
        end=end - origin,
        input_length=request.input_length,
        output_length=request.generated,
        runs=request.runs,
        predicted_length=request.predicted_length,
        completed=request.state is State.FINISHED,
        cached_prompt=request.cached_prompt,
        foretold=foretold,
        promised=None if foretold is None else foretold.high,
        run="" if request.program is None else request.program.name,
        run_within=run_within,
    )
