"""The composition root: from a configuration to a running service."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.executor import Executor
from engine.messages import Report, Stop
from models.catalog.catalog import DEFAULT_EMBEDDER, Catalog, default_cache
from scheduler.assembly import SchedulerParts
from scheduler.clock import MonotonicClock, background, watch_lag
from scheduler.dispatcher import Dispatcher
from scheduler.length.online import fit
from scheduler.serving_time.machine import StepLearning
from scheduler.serving_time.presets import find_virtual
from server.api.output.reply import FINGERPRINT
from server.api.served_model import AnswerDefaults, ServedModel, seed_source
from server.batches.files import hold_folder
from server.cache_paths import batches_path, fetch_model
from server.composition.loading import Loaded, load_engine, load_virtual
from server.composition.scheduling import learn_steps, parts_for
from server.config import NO_EMBEDDINGS, ServeConfig
from server.dashboard.feed import Feed
from server.dashboard.scene import DashboardState
from server.embeddings import TIMEOUT as EMBEDDING_TIMEOUT, TextEmbedder, make_embedding_worker
from server.grammars import STACK
from server.http.service import FilesPlace, HostMachine, Service
from server.lengths.instruction import InstructionSplit
from server.lengths.lengths import Lengths, PredictorContext
from server.lengths.predictors import fetch_predictor, open_lengths, open_predictor
from server.lengths.process import NicedProcess
from server.observe.gauges import LAG_INTERVAL, Gauges, log_throughput
from server.observe.metrics import MetricsCollector
from server.process.watchdog import Watchdog
from server.worker_process import WorkerProcess

log = logging.getLogger(__name__)

STOP_TIMEOUT = 10.0  # seconds for an executor's last step


@asynccontextmanager
async def open_service(config: ServeConfig) -> AsyncIterator[Service]:
    """Leaving stops and joins everything. Raises UserError with the remedy."""
    threading.stack_size(2 * STACK)  # of threads started from now on
    if find_virtual(config.device) is not None:
        if config.journal is not None:
            log.warning("%s answers with filler, whose lengths are no model's: --journal is not written", config.device)
        config = replace(config, no_journal=True)
    relay, clock = Relay(asyncio.get_running_loop()), MonotonicClock()
    metrics, feed = MetricsCollector(_model_names(config)[0]), Feed()
    async with AsyncExitStack() as stack:
        loaded, lengths = await _load_beside_predictor(stack, config, relay, metrics)
        parts, steps = _build_parts(stack, config, loaded, metrics)
        dispatcher = Dispatcher(parts, loaded.executors, clock, (metrics, lengths, feed), loaded.prefixes.length)
        watchdog = Watchdog(loaded.executors, dispatcher, config.stall_timeout)

        stack.enter_context(relay.send_to(metrics.receive, feed.receive, watchdog.receive, dispatcher.receive))
        stack.enter_context(run_executors(loaded.executors))
        await stack.enter_async_context(background(dispatcher.run(), "dispatcher"))
        await stack.enter_async_context(background(watch_lag(metrics.lag.observe, LAG_INTERVAL), "loop lag"))
        await stack.enter_async_context(background(log_throughput(metrics, dispatcher.table), "throughput"))
        await stack.enter_async_context(background(watchdog.run(), "watchdog of executors"))

        if loaded.grammars is not None:
            stack.enter_context(closing(loaded.grammars))
        model = _describe_model(config, loaded, stack.enter_context(ThreadPoolExecutor(1, "tokenizer")))
        feed.show(DashboardState(dispatcher, model.names[0], config.strategy, model.context_length))
        learning = parts.estimates.batches or steps
        Gauges(metrics, dispatcher, lengths, feed, loaded.store, loaded.prefixes, learning.learner)
        if (embedder := _embedder(config)) is not None:
            stack.push_async_callback(embedder.aclose)
        yield Service(
            dispatcher,
            model,
            limits=config,
            lengths=lengths,
            responsive=watchdog.responsive,
            metrics=metrics,
            feed=feed,
            embedder=embedder,
            files=stack.enter_context(_files(config)),
            machine=HostMachine(loaded.conditions, steps.machine.model),
        )


async def _load_beside_predictor(
    stack: AsyncExitStack, config: ServeConfig, relay: "Relay", metrics: MetricsCollector
) -> tuple[Loaded, Lengths]:
    predictor = await stack.enter_async_context(open_predictor(config))
    niced = stack.enter_context(closing(NicedProcess()))
    machine = find_virtual(config.device)
    load = load_engine if machine is None else partial(load_virtual, machine)
    with ThreadPoolExecutor(1, "loader") as loader:  # gone before executors start, see models/threads.py
        loaded = await asyncio.get_running_loop().run_in_executor(loader, load, config, relay.deliver)
    noted, grow = (metrics.prediction.observe, metrics.late.observe), partial(niced.run, fit)
    context = PredictorContext(*noted, loaded.shares_cores, loaded.token_features, niced.submit, grow)
    return loaded, await open_lengths(stack, config, predictor, context)


def _build_parts(
    stack: AsyncExitStack, config: ServeConfig, loaded: Loaded, metrics: MetricsCollector
) -> tuple[SchedulerParts, StepLearning]:
    learner = ThreadPoolExecutor(1, "learner")
    learner.submit(int)  # start its thread now: later the system may have none
    steps = stack.enter_context(closing(learn_steps(loaded.conditions, learner.submit, loaded.timings)))
    stack.enter_context(learner)  # ends before the last steps are learned from
    parts = parts_for(config, [executor.info for executor in loaded.executors], steps, learner.submit)
    return replace(parts, observers=(*parts.observers, metrics)), steps


def _embedder(config: ServeConfig) -> TextEmbedder | None:
    """Its process starts on first use; None where there is none."""
    if config.embedding_model == NO_EMBEDDINGS:
        return None
    model = config.embedding_model or DEFAULT_EMBEDDER
    process = WorkerProcess("embedding model", partial(make_embedding_worker, model, config.device), EMBEDDING_TIMEOUT)
    fetched = config.embedding_model is not None
    return TextEmbedder(Path(model).name, process, lambda: fetched or Catalog().find(model) is not None)


@contextmanager
def _files(config: ServeConfig) -> Iterator[FilesPlace | None]:
    virtual = find_virtual(config.device) is not None  # must not answer a model's batches
    folder = batches_path(default_cache(), config.device if virtual else config.model)
    if not config.files_size:
        yield None
        return
    with hold_folder(folder) as obstacle:
        if obstacle is not None:
            log.warning("this server takes no files and no batches: %s %s", folder, obstacle)
        yield FilesPlace(folder, round(config.files_size * 2**30)) if obstacle is None else None


def fetch(config: ServeConfig) -> None:
    """In the main thread, where a signal can interrupt it."""
    fetch_model(config)
    if config.embedding_model is not None and config.embedding_model != NO_EMBEDDINGS:
        Catalog().resolve(config.embedding_model)
    fetch_predictor(config)


@contextmanager
def run_executors(executors: Sequence[Executor]) -> Iterator[None]:
    for executor in executors:
        executor.start()
    try:
        yield
    finally:
        for executor in executors:  # stop all before joining any
            executor.post(Stop())
        for executor in executors:
            executor.stop(STOP_TIMEOUT)


def _describe_model(config: ServeConfig, loaded: Loaded, pool: ThreadPoolExecutor) -> ServedModel:
    return ServedModel(
        names=_model_names(config),
        fingerprint=FINGERPRINT if find_virtual(config.device) is None else config.device,
        root=config.model,
        context_length=min(executor.info.context_length for executor in loaded.executors),
        vocab_size=loaded.vocab_size,
        text=loaded.text,
        tokenizer_pool=pool,
        grammars=loaded.grammars,
        defaults=AnswerDefaults(
            sampling=loaded.sampling_defaults.override(config.override_generation_config or {}),
            max_tokens=config.default_max_tokens or Catalog().default_max_tokens(config.model),
            stop_repetition=Catalog().stops_repetition(config.model)
            if config.stop_repetition is None
            else config.stop_repetition,
            next_seed=seed_source(config.seed),
            instruction_split=InstructionSplit(config.instruction_split),
        ),
        settings=config,
    )


def _model_names(config: ServeConfig) -> tuple[str, ...]:
    path = Path(config.model).expanduser()
    own = path.resolve().name.removesuffix(".gguf") if path.exists() else config.model
    own = own if find_virtual(config.device) is None else config.device
    return config.served_model_name or (own,)


class Relay:
    """Dropped without listeners."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listeners: tuple[Callable[[Report], None], ...] = ()

    def deliver(self, report: Report) -> None:
        """From any thread, even after the loop was closed."""
        with suppress(RuntimeError):  # the loop is closed: an executor outlasted it
            self._loop.call_soon_threadsafe(self._receive, report)

    @contextmanager
    def send_to(self, *listeners: Callable[[Report], None]) -> Iterator[None]:
        """In this order, inside the context."""
        self._listeners = listeners
        try:
            yield
        finally:
            self._listeners = ()

    def _receive(self, report: Report) -> None:
        for listener in self._listeners:
            listener(report)
