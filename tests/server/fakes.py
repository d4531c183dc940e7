"""Stand-ins for the dispatcher and the tokenizer: scripted answers, and one token per byte."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from engine.messages import FinishReason, RowUpdate, SamplingParams, TokenLogprob
from engine.sampling.grammar import Grammars
from models.catalog.catalog import CatalogError
from models.errors import TextError
from models.network.generation_config import SamplingDefaults
from scheduler.length.distribution import LengthDistribution
from scheduler.request import Failure, Refused, Request, State, Times
from server.api.limits import Limits
from server.api.served_model import AnswerDefaults, ServedModel
from server.cli.config import ServeConfig
from server.http.service import Service

ANSWER = "Grüße, 世界 😀!"
REFUSED = "{{refused}}"
"""What the fake chat template refuses."""
UNKNOWN = "\ue000"
"""What the fake tokenizer has no token for."""
END = 256
"""The fake vocabulary is the 256 bytes, then the end token."""

Script = Callable[[Request], Iterable[RowUpdate]]


class FakeText:
    """A tokenizer whose tokens are bytes."""

    VOCAB = END + 1
    longest_token = 1
    takes_tools = False

    def to_json(self) -> str:
        """What llguidance calls a tokenizer of bytes."""
        return "byte"

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if UNKNOWN in text:
            raise TextError("no token for it")
        return list(text.encode())

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] = MappingProxyType({}),
    ) -> list[int]:
        if any(REFUSED in message["content"] for message in messages):
            raise TextError("the template does not like it")
        turns = "".join(f"{message['role']}:{message['content']}\n" for message in messages)
        opening = "".join(f"{name}={value}\n" for name, value in variables.items())
        return self.encode(f"{opening}{turns}{'assistant:' if add_generation_prompt else ''}")

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        pieces = bytes(one for one in ids if one != END).decode(errors="replace")
        return pieces if skip_special_tokens else pieces + "<end>" * list(ids).count(END)

    def token_string(self, token_id: int) -> str:
        return self.token_text(token_id)

    def token_text(self, token_id: int) -> str:
        return "<end>" if token_id == END else bytes([token_id]).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == END else bytes([token_id])


def logprob(token_id: int, sampling: SamplingParams) -> TokenLogprob:
    """A log-probability that tells its token, with as many alternatives as were asked for."""
    count = max(sampling.logprobs or 0, sampling.prompt_logprobs or 0)
    top = tuple(((token_id + step) % 256, -float(step) - 0.5) for step in range(count))
    return TokenLogprob(token_id, -0.5, 1, top)


def say(text: str, request: Request) -> Iterable[RowUpdate]:
    """An update per byte of `text`; characters come out whole, and the answer ends as its parameters say."""
    sampling, pending = request.sampling, b""
    ids = [*text.encode(), END][: sampling.max_tokens]
    for place, token_id in enumerate(ids):
        pending += bytes([token_id]) if token_id != END else b""
        piece = pending.decode(errors="ignore")
        pending = b"" if piece else pending
        update = RowUpdate(request.row_id, (token_id,), piece)
        if sampling.logprobs is not None:
            update = replace(update, logprobs=(logprob(token_id, sampling),))
        if place == 0 and sampling.prompt_logprobs is not None:
            rest = tuple(logprob(one, sampling) for one in request.prompt[1:])
            update = replace(update, prompt_logprobs=(None, *rest))
        if place == len(ids) - 1:
            update = replace(update, finish_reason=FinishReason.STOP if token_id == END else FinishReason.LENGTH)
        yield update


def answer(request: Request) -> Iterable[RowUpdate]:
    """The same answer to everybody."""
    return say(ANSWER, request)


class FakeDispatcher:
    """Plays `script` for every request, one update a turn of the event loop.

    `pause` holds every answer before its n-th update until `go` is set.
    """

    def __init__(self) -> None:
        self.script: Script = answer
        self.pause: int | None = None
        self.go = asyncio.Event()
        self.alive = True
        self.draining = False
        self.submitted: list[Request] = []
        self.cancelled: list[Request] = []
        self.changed = asyncio.Event()
        self.waiting = 0
        self.tokens_waiting = 0
        self.free_slots = 0
        self.wait = 1.0
        self.ahead: int | None = None  # place of whatever waits
        self.expected: float | None = None  # and for how long it will
        self.dead = asyncio.Event()
        self._ids = itertools.count()
        self._tasks: dict[Request, asyncio.Task[None]] = {}

    @property
    def requests_queued(self) -> int:
        return self.waiting

    @property
    def requests_waiting(self) -> int:
        return self.waiting

    @property
    def requests_running(self) -> int:
        return len(self._tasks)

    def now(self) -> float:
        return time.monotonic()

    def place(self, request: Request) -> int | None:
        return self.ahead if request.state is State.WAITING else None

    def expected_wait(self, request: Request) -> float | None:
        return self.expected if request.state is State.WAITING else None

    def retry_after(self) -> float:
        return self.wait

    async def death(self) -> None:
        await self.dead.wait()

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
    ) -> Request:
        if self.draining:
            raise Refused("the server is shutting down")
        times = Times(self.now() if arrival is None else arrival)
        request = Request(next(self._ids), tuple(prompt), sampling, times, priority, deadline)
        request.predicted_length, request.distribution = predicted_length, distribution
        self.submitted.append(request)
        self._tasks[request] = asyncio.create_task(self._play(request))
        self._note()
        return request

    def revise(
        self, request: Request, predicted_length: float | None, distribution: LengthDistribution | None = None
    ) -> None:
        request.predicted_length, request.distribution = predicted_length, distribution

    def cancel(self, request: Request) -> None:
        task = self._tasks.get(request)
        if task is not None:
            task.cancel()
            self.cancelled.append(request)
            self._end(request, State.CANCELLED)

    async def drain(self) -> None:
        self.draining = True
        self._note()
        await self.until(lambda: not self._tasks)

    def abort_all(self, message: str) -> None:
        self.draining = True
        for request, task in list(self._tasks.items()):
            task.cancel()
            request.failure = Failure.SHUTDOWN
            self._absorb(request, RowUpdate(request.row_id, finish_reason=FinishReason.ERROR, error=message))

    def die(self, request: Request) -> Iterable[RowUpdate]:
        """A script whose first token is the last that anybody gets."""
        yield from [*answer(request)][:1]
        self.alive = False
        self.dead.set()
        request.failure = Failure.EXECUTOR
        yield RowUpdate(request.row_id, finish_reason=FinishReason.ERROR, error="the executor of this request failed")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; looked at whenever a request comes, ends or is cancelled."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def _play(self, request: Request) -> None:
        for place, update in enumerate(self.script(request)):
            if place == self.pause:
                await self.go.wait()
            if place == 0:
                request.move(State.ASSIGNED)
                request.times.assigned = request.times.started = time.monotonic()
                request.move(State.RUNNING)
            self._absorb(request, update)
            await asyncio.sleep(0)

    def _absorb(self, request: Request, update: RowUpdate) -> None:
        request.generated += len(update.token_ids)
        request.send(update, time.monotonic())
        if update.finish_reason is FinishReason.ERROR:
            self._end(request, State.FAILED)
        elif update.finish_reason is not None:
            self._end(request, State.FINISHED)

    def _end(self, request: Request, state: State) -> None:
        request.times.end = time.monotonic()
        request.move(state)
        del self._tasks[request]
        self._note()

    def _note(self) -> None:
        self.changed.set()


def fake_service(pool: ThreadPoolExecutor, dispatcher: FakeDispatcher, limits: Limits) -> Service:
    """A service with nothing behind it."""
    text = FakeText()
    model = ServedModel(
        names=("fake", "org/alias"),
        root="somewhere/fake",
        context_length=256,
        vocab_size=FakeText.VOCAB,
        text=text,
        tokenizer_pool=pool,
        grammars=Grammars(text, FakeText.VOCAB, {END}),
        defaults=AnswerDefaults(SamplingDefaults(temperature=0.7, top_k=40)),
    )
    return Service(dispatcher, model, limits=limits)


@asynccontextmanager
async def open_fake_service(config: ServeConfig) -> AsyncIterator[Service]:
    """What the composition root does, with nothing behind it; the model's name says how it behaves."""
    print(f"loading {config.model}", flush=True)
    dispatcher = FakeDispatcher()
    match config.model:
        case "absent":
            raise CatalogError("unknown model 'absent': name another")
        case "endless load":
            await asyncio.Event().wait()
        case "stuck":
            dispatcher.pause = 1
        case "mortal":
            dispatcher.script = dispatcher.die
    with ThreadPoolExecutor(1) as pool:
        yield fake_service(pool, dispatcher, Limits())
