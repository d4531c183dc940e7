"""The real engine in this process, without a server around it, for whoever wants to measure it. Judges nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import torch
import uvloop

from engine.executor import Executor
from engine.messages import Report, StepReport, Stop
from engine.offload import HostStore
from engine.probe import probe
from loadgen.validation.real import Played, play
from loadgen.workload.lengths import Lengths
from models.catalog import Catalog, default_cache
from models.loader import LoadedModel, load
from models.text import Text
from scheduler.batch_learning import inline
from scheduler.bilinear import Bilinear
from scheduler.clock import MonotonicClock
from scheduler.dispatcher import Dispatcher
from scheduler.length.table import Length
from scheduler.profile_store import ProfileError, load_profile
from scheduler.strategy import STRATEGIES
from server.conditions import conditions_of
from server.config import ServeConfig
from server.devices import cuda_devices, hush_transformers, quantization, threads
from server.executors import build_executor
from server.scheduling import parts_for

STOP_TIMEOUT = 10.0
WARM_UP = 4
"""Requests that are played before the trace, and forgotten."""
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Engine:
    """What all strategies share."""

    config: ServeConfig
    models: tuple[LoadedModel, ...]
    text: Text
    profile: Bilinear

    @property
    def vocabulary(self) -> int:
        return min(self.text.vocab_size, self.models[0].vocab_size)


def load_engine(config: ServeConfig) -> Engine:
    """Load the model for each executor and find its profile; raises what `open_service` raises."""
    models, text = load_models(config)
    profile = load_profile(default_cache(), conditions_of(config, models[0]))
    if profile is None:
        executors = f" --executors {config.executors}" if config.executors > 1 else ""
        raise ProfileError(
            f"there is no profile of {config.model} under these settings: run `lengthwise profile "
            f"{config.model}{executors}` first, with the same settings"
        )
    return Engine(config, models, text, profile)


def load_models(config: ServeConfig) -> tuple[tuple[LoadedModel, ...], Text]:
    """The model once for each executor, on a CPU with weights in common; raises what `open_service` raises."""
    hush_transformers()
    folder = Catalog().resolve(config.model)
    text = Text.load(folder)
    devices = cuda_devices(config)
    if devices:
        models = [
            load(folder, dtype=config.dtype, device=device, quantization=quantization(config)) for device in devices
        ]
    else:
        torch.set_num_threads(threads(config))
        first = load(folder, dtype=config.dtype, device="cpu", quantization=quantization(config))
        models = [first, *(first.twin() for _ in range(max(1, config.executors) - 1))]
    probe(models[0], text)
    return tuple(models), text


Connect = Callable[[Callable[[Report], None]], None]
"""Says who receives what the executors report."""


@contextmanager
def new_executors(engine: Engine) -> Iterator[tuple[list[Executor], Connect]]:
    """New executors, not started, and stopped on leaving if they were."""
    receivers: list[Callable[[Report], None]] = []

    def deliver(report: Report) -> None:
        for receive in receivers:
            receive(report)

    store = HostStore()
    with ThreadPoolExecutor(1, "builder") as builder:
        executors = [
            builder.submit(build_executor, engine.config, index, model, engine.text, store, deliver).result()
            for index, model in enumerate(engine.models)
        ]
    try:
        yield executors, receivers.append
    finally:
        for executor in executors:
            executor.post(Stop())
        for executor in executors:
            if executor.alive:
                executor.stop(STOP_TIMEOUT)


def play_trace(
    config: ServeConfig,
    engine: Engine,
    executors: Sequence[Executor],
    connect: Connect,
    trace: Sequence[Lengths],
    prompts: Sequence[tuple[int, ...]],
    watch: Callable[[int], None],
) -> Played:
    """The trace on the real engine, after a few requests that warm it up."""

    async def run() -> Played:
        loop, clock = asyncio.get_running_loop(), MonotonicClock()
        parts = parts_for(config, [one.info for one in executors], engine.profile, inline)
        dispatcher = Dispatcher(parts, executors, clock)

        turns: list[float] = []

        def receive(report: Report) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(book, report)

        def book(report: Report) -> None:
            if isinstance(report, StepReport):
                turns.append(report.seconds)
            dispatcher.receive(report)

        connect(receive)
        for executor in executors:
            executor.start()
        task = asyncio.create_task(dispatcher.run())
        try:
            oracle = predicts(config)
            first = [Lengths(0.0, one.input_length, min(one.output_length, WARM_UP_TOKENS)) for one in trace[:WARM_UP]]
            tokens = most_tokens(trace)
            await play(dispatcher, clock, first, prompts[:WARM_UP], max_tokens=tokens, oracle=oracle)
            turns.clear()
            played = await play(dispatcher, clock, trace, prompts, max_tokens=tokens, oracle=oracle, watch=watch)
            return replace(played, busy=sum(turns))
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def predicts(config: ServeConfig) -> bool:
    """Whether the strategy wants to know lengths; both sides are told the true ones."""
    return STRATEGIES[config.strategy].length != Length.NONE


def most_tokens(trace: Sequence[Lengths]) -> int:
    return max(one.output_length for one in trace)
