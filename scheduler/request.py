"""A request as the scheduler sees it: one sequence, its state, times and stream; a call with n=2 is two requests."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from engine.messages import RowId, RowSpec, RowUpdate
from engine.sampling.params import SamplingParams
from scheduler.stream import TokenStream

if TYPE_CHECKING:  # it needs numpy, which is slow to load
    from scheduler.length.prediction import LengthDistribution
    from scheduler.wait_estimate.completion import Expected


BACKGROUND = 2**31  # `priority` of requests without a waiting client, below any that a client can set


class State(StrEnum):
    WAITING = "waiting"
    ASSIGNED = "assigned"  # sent to an executor that has not begun it
    RUNNING = "running"  # prefill, or decode, has begun
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return not TRANSITIONS[self]


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.WAITING: frozenset({State.ASSIGNED, State.CANCELLED, State.FAILED}),
    State.ASSIGNED: frozenset({State.RUNNING, State.WAITING, State.FINISHED, State.CANCELLED, State.FAILED}),
    State.RUNNING: frozenset({State.WAITING, State.FINISHED, State.CANCELLED, State.FAILED}),
    State.FINISHED: frozenset(),
    State.CANCELLED: frozenset(),
    State.FAILED: frozenset(),
}  # back to WAITING when rescheduled, or its executor is gone


class IllegalTransition(RuntimeError):
    """A move that TRANSITIONS lacks: a bug, never the client's fault."""


class Failure(StrEnum):
    """Why the server, not the row, failed a request."""

    SHUTDOWN = "shutdown"
    DEADLINE = "deadline"  # missed before it began
    EXECUTOR = "executor"  # the device is gone, or hangs
    SCHEDULER = "scheduler"


@dataclass(slots=True)
class Times:
    """Seconds of the dispatcher's clock; None until they come."""

    arrival: float  # from when its place counts: when it came, or when the call came that it repeats
    assigned: float | None = None
    started: float | None = None  # prefill began
    first_token: float | None = None
    end: float | None = None
    came: float = field(init=False)  # when it came itself, from where all durations are measured

    def __post_init__(self) -> None:
        self.came = self.arrival


@dataclass(eq=False, slots=True)
class Request:
    """One sequence, changed by the dispatcher only. Compared by identity."""

    row_id: RowId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    times: Times
    priority: int = 0  # lower is earlier, as in vLLM
    deadline: float | None = None  # seconds of the dispatcher's clock
    client: str = ""  # for fair shares; empty where clients are not told apart
    state: State = State.WAITING
    generated: int = 0  # end token included
    executor: int | None = None  # index of the holder while ASSIGNED or RUNNING
    failure: Failure | None = None  # None also where its row failed
    stop_reason: str | int | None = None  # stop text, stop token, REPETITION; None for the end token
    lacks_kv: bool = False  # handed back without its KV cache
    runs: int = 0  # times given to an executor
    predicted_length: float | None = None  # G'(p), end token included
    correction: float = 1.0  # factor of the prediction (remaining_length.py)
    cache_scope: str = ""  # requests share prefixes only within a scope
    prompt_cache_key: str = ""  # equal keys: prompts begin alike
    cached_prompt: int = 0  # prefix cache tokens: expected, and true from the first token on
    distribution: LengthDistribution | None = None
    expected: Expected | None = None  # start and end as expected on arrival; None for one that was never submitted
    stream: TokenStream = field(default_factory=TokenStream)
    # whether it is in the journal, some time after its end; None where nobody asks
    recorded: Future[bool] | None = None

    @property
    def input_length(self) -> int:
        """L(p): prompt tokens, template included."""
        return len(self.prompt)

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.prompt) + self.generated

    @property
    def in_background(self) -> bool:
        """Whether it runs only where it costs others little."""
        return self.priority >= BACKGROUND

    @property
    def unread(self) -> int:
        """Tokens to prefill before it can go on."""
        return self.tokens - self.cached_prompt if self.needs_prefill else 0

    @property
    def needs_prefill(self) -> bool:
        return self.generated == 0 or self.lacks_kv

    @property
    def spec(self) -> RowSpec:
        return RowSpec(self.row_id, self.prompt, self.sampling, self.priority, self.cache_scope)

    def move(self, state: State) -> None:
        """Raises IllegalTransition."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"request {self.row_id} cannot go from {self.state} to {state}")
        self.state = state

    def send(self, update: RowUpdate, now: float) -> bool:
        """Pass an update to the reader; True with the first token."""
        first = self.times.first_token is None and update.tokens > 0
        if first:
            self.times.first_token = now
            self.cached_prompt = update.cached_prompt
        self.stop_reason = update.stop_reason
        self.stream.put(update)
        return first


class Refused(Exception):
    """The server takes no new requests."""

    def __init__(self, message: str, failure: Failure = Failure.SHUTDOWN) -> None:
        super().__init__(message)
        self.failure = failure


class TooLate(Refused):
    """A request's deadline cannot be met, by the expected wait."""

    def __init__(self, *, waits: bool = True) -> None:
        why = "too much waits before it" if waits else "it takes longer by itself, though nothing waits before it"
        super().__init__(f"the answer cannot be ready by its deadline: {why}", Failure.DEADLINE)
