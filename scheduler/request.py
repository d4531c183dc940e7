"""A request as the scheduler sees it: one sequence to generate, its state, its timestamps and its answer's stream.

A client's call with n=2, or with two prompts, is two requests here. This file knows no HTTP and no device.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.messages import RowId, RowSpec, RowUpdate
from engine.sampling.params import SamplingParams
from scheduler.stream import TokenStream

if TYPE_CHECKING:  # it needs numpy, which takes its time to load
    from scheduler.length.prediction import LengthDistribution
    from scheduler.wait_estimate.completion import Expected


BACKGROUND = 2**31
"""The `priority` of requests that no client waits for: below what any client can ask for."""


class State(StrEnum):
    """Stages of a request's life."""

    WAITING = "waiting"
    ASSIGNED = "assigned"
    """Sent to an executor, which has not begun it yet: it waits there."""
    RUNNING = "running"
    """The executor has begun to read the prompt, or to go on with the answer."""
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return not TRANSITIONS[self]


TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.WAITING: frozenset({State.ASSIGNED, State.CANCELLED, State.FAILED}),
        State.ASSIGNED: frozenset({State.RUNNING, State.WAITING, State.FINISHED, State.CANCELLED, State.FAILED}),
        State.RUNNING: frozenset({State.WAITING, State.FINISHED, State.CANCELLED, State.FAILED}),
        State.FINISHED: frozenset(),
        State.CANCELLED: frozenset(),
        State.FAILED: frozenset(),
    }
)
"""The legal moves. ASSIGNED and RUNNING go back to WAITING when a row is rescheduled or its executor is gone."""


class IllegalTransition(RuntimeError):
    """A request was asked to make a move that TRANSITIONS does not list: a bug, never the client's fault."""


class Failure(StrEnum):
    """Why the server ended a request with an error, where it was not the request's own row that failed."""

    SHUTDOWN = "shutdown"
    DEADLINE = "deadline"
    """The answer was wanted before it could be begun."""
    EXECUTOR = "executor"
    """The device is gone, or stands still."""
    SCHEDULER = "scheduler"


@dataclass(slots=True)
class Times:
    """Moments of a request's life, in seconds of the dispatcher's clock; None until they come."""

    arrival: float
    assigned: float | None = None
    started: float | None = None
    """Prefill began; what came before was waiting, in the queue here or in the executor's."""
    first_token: float | None = None
    end: float | None = None


@dataclass(eq=False, slots=True)
class Request:
    """One sequence to generate. Only the dispatcher changes it.

    Requests compare by identity, so that they can live in sets and as keys.
    """

    row_id: RowId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    times: Times
    priority: int = 0
    """Lower is earlier, as in vLLM."""
    deadline: float | None = None
    """When the answer is wanted, in seconds of the dispatcher's clock; None without one."""
    client: str = ""
    """The one who is served by it, among whom service is shared out; empty where clients are not told apart."""
    state: State = State.WAITING
    generated: int = 0
    """Tokens made so far, the end token included."""
    executor: int | None = None
    """Index of the executor that holds the row; set by the dispatcher while ASSIGNED or RUNNING."""
    failure: Failure | None = None
    """Why the server gave it up; None also where its row failed by itself."""
    stop_reason: str | int | None = None
    """Cause of the answer's end: a stop string, a stop token, REPETITION; None for the end token and before the end."""
    lacks_kv: bool = False
    """Whether it waits without K and V of what it has generated, since they were not kept when it was handed back."""
    runs: int = 0
    """Times that it was given to an executor: once, and once more each time that it was handed back."""
    predicted_length: float | None = None
    """G'(p): predicted tokens of the answer, the end token included; None without a prediction."""
    correction: float = 1.0
    """What the prediction is to be multiplied by, as answers with such predictions turned out (remaining_length.py)."""
    cache_scope: str = ""
    """Requests of one scope share what is kept of their prompts; of different scopes nothing."""
    prompt_cache_key: str = ""
    """Requests with the same key have prompts that begin alike; empty where that is not known."""
    cached_prompt: int = 0
    """Tokens of the prompt whose K and V are kept from earlier ones: expected until the first token, then as it was."""
    distribution: LengthDistribution | None = None
    """How likely each length is; None where that is not known."""
    expected: Expected | None = None
    """When it was expected to start and to end, when it came; None for one that never came to a dispatcher."""
    stream: TokenStream = field(default_factory=TokenStream)
    recorded: Future[bool] | None = None
    """Tells, some time after its end, whether it is in the journal; None where its reader need not wait for that."""

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
        """Tokens to read before it can go on, where it needs prefill."""
        return self.tokens - self.cached_prompt

    @property
    def needs_prefill(self) -> bool:
        """Whether all its tokens must be read before it can go on."""
        return self.generated == 0 or self.lacks_kv

    @property
    def spec(self) -> RowSpec:
        return RowSpec(self.row_id, self.prompt, self.sampling, self.priority, self.cache_scope)

    def move(self, state: State) -> None:
        """Change state; raises IllegalTransition when the table forbids it."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"request {self.row_id} cannot go from {self.state} to {state}")
        self.state = state

    def send(self, update: RowUpdate, now: float) -> bool:
        """Pass an update on to the answer's reader; returns whether the first token is in it."""
        first = bool(update.token_ids) and self.times.first_token is None
        if first:
            self.times.first_token = now
            self.cached_prompt = update.cached_prompt
        self.stop_reason = update.stop_reason
        self.stream.put(update)
        return first


class Refused(Exception):
    """The server takes no new requests; the message says why."""

    def __init__(self, message: str, failure: Failure = Failure.SHUTDOWN) -> None:
        super().__init__(message)
        self.failure = failure


class TooLate(Refused):
    """A request's deadline cannot be met, by what the queue is expected to take."""

    def __init__(self) -> None:
        super().__init__("the answer cannot be ready by its deadline: too much waits before it", Failure.DEADLINE)
