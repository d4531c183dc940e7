"""A request: one sequence; a call with n=2 is two."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from engine.messages import RowId, RowSpec, RowUpdate
from engine.sampling.params import SamplingParams
from scheduler.programs.program import Program
from scheduler.stream import TokenStream

if TYPE_CHECKING:  # slow to load numpy
    from scheduler.length.prediction import LengthDistribution
    from scheduler.wait_estimate.completion import Expected


BACKGROUND = 2**31  # `priority` beyond clients'


COVERAGE = 0.95  # of promises


class State(StrEnum):
    WAITING = "waiting"
    ASSIGNED = "assigned"  # not begun
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self not in TRANSITIONS


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.WAITING: frozenset({State.ASSIGNED, State.CANCELLED, State.FAILED}),
    State.ASSIGNED: frozenset({State.RUNNING, State.WAITING, State.FINISHED, State.CANCELLED, State.FAILED}),
    State.RUNNING: frozenset({State.WAITING, State.FINISHED, State.CANCELLED, State.FAILED}),
}  # WAITING again if rescheduled


class IllegalTransition(RuntimeError):
    """A bug."""


class Failure(StrEnum):
    SHUTDOWN = "shutdown"
    DEADLINE = "deadline"  # missed before it began
    EXECUTOR = "executor"  # gone or hanging
    SCHEDULER = "scheduler"


@dataclass(slots=True)
class Times:
    """Of the dispatcher's clock."""

    arrival: float  # when its place counts from
    assigned: float | None = None
    started: float | None = None  # prefill
    first_token: float | None = None
    end: float | None = None
    came: float = field(init=False)  # actual arrival, for durations

    def __post_init__(self) -> None:
        self.came = self.arrival


@dataclass(eq=False, slots=True)
class Request:
    """Compared by identity."""

    row_id: RowId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    times: Times
    priority: int = 0  # as in vLLM
    deadline: float | None = None
    client: str = ""  # empty if unknown
    state: State = State.WAITING
    generated: int = 0  # with end token
    executor: int | None = None
    failure: Failure | None = None  # None also if its row failed
    stop_reason: str | int | None = None  # stop text, token, REPETITION; None: end token
    lacks_kv: bool = False
    runs: int = 0
    predicted_length: float | None = None  # G'(p), with end token
    correction: float = 1.0  # see remaining_length.py
    cache_scope: str = ""  # of prefixes
    prompt_cache_key: str = ""  # equal for prompts that begin alike
    program: Program | None = None  # None: no run's
    cached_prompt: int = 0  # expected, then true tokens
    distribution: LengthDistribution | None = None
    expected: Expected | None = None  # on arrival
    promised: float | None = None  # clock time asked for
    coverage: float = COVERAGE  # of its promise
    stream: TokenStream = field(default_factory=TokenStream)
    # in the journal; None if nobody asks
    recorded: Future[bool] | None = None

    @property
    def input_length(self) -> int:
        """L(p), template included."""
        return len(self.prompt)

    @property
    def tokens(self) -> int:
        return len(self.prompt) + self.generated

    @property
    def in_background(self) -> bool:
        return self.priority >= BACKGROUND

    @property
    def unread(self) -> int:
        if self.generated and not self.lacks_kv:
            return 0
        return len(self.prompt) + self.generated - self.cached_prompt

    @property
    def needs_prefill(self) -> bool:
        return self.generated == 0 or self.lacks_kv

    @property
    def spec(self) -> RowSpec:
        back = 0.0 if self.program is None else self.program.back_within
        return RowSpec(self.row_id, self.prompt, self.sampling, self.priority, self.cache_scope, back)

    def keeps_promise(self, end: float) -> bool | None:
        """None where there was none."""
        return None if self.expected is None or not self.expected.known else end <= self.expected.by

    def move(self, state: State) -> None:
        """Raises IllegalTransition."""
        if state not in TRANSITIONS.get(self.state, ()):
            raise IllegalTransition(f"request {self.row_id} cannot go from {self.state} to {state}")
        self.state = state

    def send(self, update: RowUpdate, now: float) -> bool:
        """True with the first token."""
        first = self.times.first_token is None and update.tokens > 0
        if first:
            self.times.first_token = now
            self.cached_prompt = update.cached_prompt
        self.stop_reason = update.stop_reason
        self.stream.put(update)
        return first


class Refused(Exception):
    def __init__(self, message: str, failure: Failure = Failure.SHUTDOWN) -> None:
        super().__init__(message)
        self.failure = failure


class Unpromised(Refused):
    def __init__(self, by: float | None) -> None:
        """`by`: nearest clock time that can be promised; None before any measurement."""
        super().__init__("its answer cannot be promised by then")
        self.by = by


class TooLate(Refused):
    def __init__(self, *, waits: bool = True) -> None:
        why = "too much waits before it" if waits else "it takes longer by itself, though nothing waits before it"
        super().__init__(f"the answer cannot be ready by its deadline: {why}", Failure.DEADLINE)
