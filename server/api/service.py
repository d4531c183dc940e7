"""What the handlers work with: a way to generate, a way to read and write text, and the limits that apply.

The composition root fills it; nothing here starts, loads or owns anything.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from aiohttp import web

from engine.messages import SamplingParams
from engine.sampling.grammar import Grammars
from models.network.generation_config import SamplingDefaults
from scheduler.length.distribution import LengthDistribution
from scheduler.length.features import LengthQuery
from scheduler.length.prediction import Prediction
from scheduler.request import Request
from server.lengths.instruction import InstructionSplit

if TYPE_CHECKING:
    from server.dashboard.feed import Feed
    from server.observe.metrics import Metrics


class Generator(Protocol):
    """What the handlers need of scheduler.dispatcher.Dispatcher. Event loop only."""

    @property
    def alive(self) -> bool: ...
    @property
    def requests_queued(self) -> int: ...
    @property
    def requests_waiting(self) -> int: ...
    @property
    def requests_running(self) -> int: ...
    @property
    def tokens_waiting(self) -> int: ...
    @property
    def free_slots(self) -> int: ...
    def now(self) -> float: ...
    def place(self, request: Request) -> int | None: ...
    def expected_wait(self, request: Request) -> float | None: ...
    def retry_after(self) -> float: ...
    def submit(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        deadline: float | None = None,
        predicted_length: float | None = None,
        distribution: LengthDistribution | None = None,
        arrival: float | None = None,
    ) -> Request: ...
    def revise(
        self, request: Request, predicted_length: float | None, distribution: LengthDistribution | None = None
    ) -> None: ...
    def cancel(self, request: Request) -> None: ...
    def drain(self) -> Awaitable[None]: ...
    def death(self) -> Awaitable[None]: ...
    def abort_all(self, message: str) -> None: ...


Revise: TypeAlias = Callable[[Request, float | None, LengthDistribution | None], None]
"""Takes a better prediction of a request's length, as a Generator does."""


class Codec(Protocol):
    """What the handlers need of models.text.Text. Encoding is heavy: never on the event loop."""

    @property
    def longest_token(self) -> int: ...
    @property
    def takes_tools(self) -> bool: ...
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] = MappingProxyType({}),
    ) -> list[int]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def token_string(self, token_id: int) -> str: ...
    def token_text(self, token_id: int) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...


class AnswerLengths(Protocol):
    """What the handlers need of server.lengths.Lengths. Event loop only."""

    async def predict(self, query: LengthQuery, sampling: SamplingParams, *, queues: bool = True) -> Prediction | None:
        """How long an answer will be, None where nobody predicts; raises NoReplay where the client should have said.

        `queues` is whether its request will have to queue: else nobody need wait for what takes time to tell.
        """
        ...

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        """A request was submitted, with what was known of it; `revise` is told what becomes known later."""
        ...


class UnknownLengths:
    """The Foresight of a server where nobody predicts and nothing is recorded."""

    async def predict(self, query: LengthQuery, sampling: SamplingParams, *, queues: bool = True) -> Prediction | None:
        return None

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask of the server. Durations are seconds, sizes bytes."""

    max_body_bytes: int = 4 * 1024 * 1024
    body_timeout: float = 10.0
    """How long a request's body may take to arrive."""
    stall_timeout: float = 30.0
    """How long a client may leave a stream unread before its request is cancelled."""
    sse_keep_alive_interval: float = 15.0
    """Silence after which a stream gets a blank line; 0 sends none."""
    place_interval: float = 1.0
    """How often a stream that asks for its progress looks for its place in line, to tell it when that has changed."""
    max_num_queued_reqs: int | None = None
    """Requests that may wait; a call that comes when so many do is refused."""
    max_num_queued_tokens: int | None = None
    """The same in tokens, of prompts and of answers as they are predicted, or else may become."""


@dataclass(slots=True)
class PendingCalls:
    """Calls that have not come to the queue yet. Event loop only."""

    pending: int = 0
    """Those whose bodies have come."""
    large_bodies: int = 0
    """Those whose bodies are large, and coming."""


def _always() -> bool:
    return True


def fresh_seed() -> int:
    """A seed that nobody can foresee."""
    return secrets.randbits(64)


def seed_source(seed: int | None) -> Callable[[], int]:
    """Seeds for answers whose client gave none: the same row of them for the same `seed`, else fresh ones."""
    return fresh_seed if seed is None else partial(random.Random(seed).getrandbits, 64)


@dataclass(frozen=True, slots=True)
class Service:
    """One loaded model, ready to answer."""

    dispatcher: Generator
    text: Codec
    model_names: tuple[str, ...]
    """Names the model answers to; the first is its id in responses."""
    model_root: str
    """What the model was loaded from, as the user named it."""
    context_length: int
    """Longest prompt plus answer, in tokens."""
    vocab_size: int
    """Token ids that both the tokenizer and the network know; either may have more of its own."""
    sampling_defaults: SamplingDefaults
    """Values of the sampling parameters that a request leaves out."""
    tokenizer_pool: Executor
    """Where text is encoded, grammars are compiled and large bodies are parsed, off the event loop."""
    grammars: Grammars
    """The compiled grammars, which the executors use too."""
    default_max_tokens: int | None = None
    """Most tokens of a chat's answer whose request names no limit; None: the rest of the context."""
    stop_repetition: bool = False
    """Whether an answer that only repeats itself is ended."""
    executors: int = 1
    next_seed: Callable[[], int] = fresh_seed
    """Makes the seed of an answer whose client gave none."""
    limits: Limits = field(default_factory=Limits)
    crowd: PendingCalls = field(default_factory=PendingCalls)
    responsive: Callable[[], bool] = _always
    """Whether executors that have work go on with it."""
    allow_replay: bool = False
    """Whether a request may bring the length of its answer (design 7.3)."""
    foresight: AnswerLengths = field(default_factory=UnknownLengths)
    metrics: Metrics | None = None
    """What is counted, for /metrics."""
    feed: Feed | None = None
    """What happens in the batches, for the dashboard."""
    instruction_split: InstructionSplit = InstructionSplit.SYSTEM
    """Where an instruction is looked for when a request does not say."""

    @property
    def model_id(self) -> str:
        return self.model_names[0]


SERVICE = web.AppKey("service", Service)
"""Where an application keeps its service."""
