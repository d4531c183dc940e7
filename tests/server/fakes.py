"""An executor that plays scripts behind a real dispatcher, and a tokenizer of one token per byte."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from ctypes import PyDLL
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from msgspec import structs

from engine.messages import (
    Admit,
    BatchShape,
    Cancel,
    Command,
    ExecutorDied,
    ExecutorInfo,
    FinishReason,
    Report,
    RowId,
    RowSpec,
    RowUpdate,
    StepReport,
    TokenLogprob,
)
from engine.sampling.grammar import Grammars
from engine.sampling.params import SamplingParams
from models.catalog.catalog import CatalogError
from models.errors import TextError
from models.network.generation_config import SamplingDefaults
from scheduler.assembly import assemble
from scheduler.batching.batcher import BatchLimits as Batching
from scheduler.clock import MonotonicClock, background
from scheduler.dispatcher import Dispatcher
from scheduler.request import Request
from scheduler.strategy import STRATEGIES
from scheduler.worker import Worker
from server.api.served_model import AnswerDefaults, ServedModel
from server.config import ServeConfig
from server.grammars import GrammarCompiler, Outcome, Trial, try_grammars
from server.http.service import Service
from server.lengths.lengths import Lengths
from server.process import life
from server.process.loop_watchdog import watch_loop

ANSWER = "Grüße, 世界 😀!"
REFUSED = "{{refused}}"
"""Text that the fake chat template refuses."""
UNKNOWN = "\ue000"
"""Character that the fake tokenizer has no token for."""
END = 256
"""The fake vocabulary is the 256 bytes, then the end token."""

Script = Callable[[RowSpec], Iterable[RowUpdate]]


class FakeText:
    """A tokenizer whose tokens are bytes."""

    VOCAB = END + 1
    longest_token = 1
    takes_tools = False

    def to_json(self) -> str:
        """The name by which llguidance knows a tokenizer of bytes."""
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
        continue_final_message: bool = False,
        variables: Mapping[str, object] = MappingProxyType({}),
    ) -> list[int]:
        if any(REFUSED in message["content"] for message in messages):
            raise TextError("the template does not like it")
        turns = "".join(f"{message['role']}:{message['content']}\n" for message in messages)
        opening = "".join(f"{name}={value}\n" for name, value in variables.items())
        turns = turns.removesuffix("\n") if continue_final_message else turns
        return self.encode(f"{opening}{turns}{'assistant:' if add_generation_prompt else ''}")

    def encode_turns(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> tuple[list[int], slice, slice]:
        """As models.text.Text has it: the ids, and the places of the system's text and of the others'."""
        options.pop("scope", None)
        ids = self.encode_chat(messages, **options)
        texts = [message["content"].encode() for message in messages]
        system = texts.pop(0) if messages[0]["role"] == "system" else b""
        first, last = (texts[0], texts[-1]) if texts else (b"", b"")
        told, end = bytes(ids).find(system), bytes(ids).rfind(last)
        begin = bytes(ids).find(first, told + len(system))
        return ids, slice(told, told + len(system)), slice(begin, end + len(last))

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


def say(text: str, row: RowSpec) -> Iterable[RowUpdate]:
    """An update per byte of `text`; characters come out whole, and the answer ends as its parameters say."""
    sampling, pending = row.sampling, b""
    ids = [*text.encode(), END][: sampling.max_tokens]
    for place, token_id in enumerate(ids):
        pending += bytes([token_id]) if token_id != END else b""
        piece = pending.decode(errors="ignore")
        pending = b"" if piece else pending
        update = RowUpdate(row.row_id, (token_id,), piece)
        if sampling.logprobs is not None:
            update = structs.replace(update, logprobs=(logprob(token_id, sampling),))
        if place == 0 and sampling.prompt_logprobs is not None:
            rest = tuple(logprob(one, sampling) for one in row.prompt[1:])
            update = structs.replace(update, prompt_logprobs=(None, *rest))
        if place == len(ids) - 1:
            update = structs.replace(
                update, finish_reason=FinishReason.STOP if token_id == END else FinishReason.LENGTH
            )
        yield update


def answer(row: RowSpec) -> Iterable[RowUpdate]:
    """Script that gives each row ANSWER."""
    return say(ANSWER, row)


class Death(Exception):
    """Raised by a script: the executor dies."""


def die(row: RowSpec) -> Iterable[RowUpdate]:
    """A script whose first token is the last that anybody gets."""
    yield from [*answer(row)][:1]
    raise Death


def stand_still(row: RowSpec) -> Iterable[RowUpdate]:
    """A script with which the event loop goes no further."""
    threading.Event().wait()
    return ()


class PlayedExecutor:
    """An executor that plays its stage's script for every row, each update once the one before can have been read."""

    def __init__(self, stage: PlayedDispatcher, max_rows: int) -> None:
        self.info = ExecutorInfo(0, "cpu", capacity_tokens=10**6, max_rows=max_rows, context_length=256)
        self.alive = True
        self._stage = stage
        self._plays: dict[RowId, asyncio.Task[None]] = {}

    def post(self, command: Command) -> None:
        match command:
            case Admit(rows):
                self._plays |= {row.row_id: asyncio.create_task(self._play(row)) for row in rows}
            case Cancel(row_ids):
                for play in [self._plays.pop(row_id) for row_id in row_ids if row_id in self._plays]:
                    play.cancel()

    def reclaim(self) -> tuple[Command, ...]:
        return ()

    async def _play(self, row: RowSpec) -> None:
        stage = self._stage
        try:
            for place, update in enumerate(stage.script(row)):
                if place == stage.pause:
                    await stage.go.wait()
                shape = BatchShape(len(self._plays), capacity_tokens=self.info.capacity_tokens)
                stage.receive(StepReport(0, 1, (update,), shape, 0.0))
                for _ in range(3):
                    await asyncio.sleep(0)
        except Death:
            self.alive = False
            stage.receive(ExecutorDied(0, "it died"))
        finally:
            self._plays.pop(row.row_id, None)


class SkippedClock(MonotonicClock):
    """The machine's own time, some of which a test may skip."""

    skipped = 0.0

    def now(self) -> float:
        return super().now() + self.skipped


class PlayedDispatcher(Dispatcher):
    """The dispatcher, with an executor that plays `script` for every request.

    `pause` holds every answer before its n-th update until `release`; 0 holds every request in the queue.
    """

    def __init__(self, max_rows: int = 64) -> None:
        self.script: Script = answer
        self.pause: int | None = None
        self.go = asyncio.Event()
        self.submitted: list[Request] = []
        self.cancelled: list[Request] = []
        self.executor = PlayedExecutor(self, max_rows)
        self._changes, self._time = asyncio.Event(), SkippedClock()
        parts = assemble(STRATEGIES["baton-pd"], Batching(group_tokens=10**6, prefill_ahead=0))
        super().__init__(parts, (self.executor,), self._time)

    @property
    def draining(self) -> bool:
        return self._draining

    def submit_all(self, *args: Any, **fields: Any) -> list[Request]:
        requests = super().submit_all(*args, **fields)
        self.submitted += requests
        self._changes.set()
        return requests

    def cancel(self, request: Request) -> None:
        if not request.state.is_final:
            self.cancelled.append(request)
        super().cancel(request)

    def crowd(self, waiting: int, *, free: int = 0, tokens: int = 2) -> None:
        """Fill the executor but for some slots, and let requests of so many tokens each wait, all until `release`."""
        self.pause, before = None, len(self.submitted)
        for _ in range(self.executor.info.max_rows - free):
            super().submit((1,), SamplingParams(max_tokens=1))
        self.dispatch()
        self.pause = 0
        for _ in range(waiting):
            super().submit((1,), SamplingParams(max_tokens=tokens - 1))
        del self.submitted[before:]
        self.dispatch()

    def release(self) -> None:
        """Let everything go on that is held."""
        self.go.set()
        self._changed()

    def skip(self, seconds: float) -> None:
        """Let it be as late as it would be after so long."""
        self._time.skipped += seconds
        self._changed()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; looked at whenever a request comes, goes on, ends or is cancelled."""
        while not condition():
            self._changes.clear()
            await self._changes.wait()

    def receive(self, report: Report) -> None:
        super().receive(report)
        self._changes.set()

    async def drain(self) -> None:
        self._changes.set()
        await super().drain()

    def _assign(self, worker: Worker, now: float) -> bool:
        return (self.pause != 0 or self.go.is_set()) and super()._assign(worker, now)

    def _changed(self) -> None:
        super()._changed()
        self._changes.set()


@asynccontextmanager
async def played_dispatcher(max_rows: int = 64) -> AsyncIterator[PlayedDispatcher]:
    """A dispatcher that dispatches until the context is left."""
    dispatcher = PlayedDispatcher(max_rows)
    async with background(dispatcher.run(), "dispatcher"):
        yield dispatcher
        dispatcher.abort_all("the test is over")


@dataclass(frozen=True, slots=True)
class InThread:
    """Tries grammars without a process, for tests that send none which would need one."""

    grammars: Grammars

    def run(self, trial: Trial) -> Outcome:
        return try_grammars(trial, self.grammars)

    def close(self) -> None:
        pass


def fake_service(dispatcher: Dispatcher) -> Service:
    """A service with nothing behind it."""
    text = FakeText()
    grammars = Grammars(text.to_json, FakeText.VOCAB, {END})
    model = ServedModel(
        names=("fake", "org/alias"),
        root="somewhere/fake",
        context_length=256,
        vocab_size=FakeText.VOCAB,
        text=cast(Any, text),
        tokenizer_pool=ThreadPoolExecutor(1),
        grammars=GrammarCompiler(grammars, cast(Any, InThread(grammars))),
        defaults=AnswerDefaults(SamplingDefaults(temperature=0.7, top_k=40)),
    )
    return Service(dispatcher, model, Lengths(ServeConfig(), "fake"))


def hold_the_interpreter() -> None:
    """Let no other thread run for a minute, from the second signal on: before it, Python would not learn of it."""
    while signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        pass
    PyDLL(None).sleep(60)


AT_THE_END: Mapping[str, Callable[[], object]] = MappingProxyType(
    {"busy at the end": threading.Event().wait, "holding the interpreter": hold_the_interpreter}
)
"""The work that a thread has got when the server would leave, by the model's name."""


@asynccontextmanager
async def open_fake_service(config: ServeConfig) -> AsyncIterator[Service]:
    """A stand-in for `open_service` with nothing behind it; the model's name says how it behaves."""
    print(f"loading {config.model}", flush=True)
    match config.model:
        case "absent":
            raise CatalogError("unknown model 'absent': name another")
        case "endless load":
            await asyncio.Event().wait()
    async with played_dispatcher() as dispatcher:
        match config.model:
            case "stuck":
                dispatcher.pause = 1
            case "mortal":
                dispatcher.script = die
            case "standing still":
                vars(life).update(watch_loop=partial(watch_loop, limit=0.5, interval=0.05))
                dispatcher.script = stand_still
        service = fake_service(dispatcher)
        with service.model.tokenizer_pool as pool:
            yield service
            if config.model in AT_THE_END:
                print("leaving", flush=True)
                pool.submit(AT_THE_END[config.model])


def failing(request: RowSpec) -> Iterable[RowUpdate]:
    yield from [*say("Half", request)][:4]
    yield RowUpdate(request.row_id, finish_reason=FinishReason.ERROR, error="the device caught fire")


def endless(request: RowSpec) -> Iterable[RowUpdate]:
    """An answer that goes on until somebody cancels it."""
    while True:
        yield RowUpdate(request.row_id, (65,), "A")
