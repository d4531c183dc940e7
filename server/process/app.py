"""The composition root: from a configuration to a service whose model is loaded and whose threads run.

The only place that knows all the parts; their work is their own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from engine.executor import Executor
from engine.kv.host_store import HostStore
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.messages import Deliver, Report, Stop
from engine.row import Row
from engine.sampling.grammar import Grammars
from models.catalog.catalog import DEFAULT_EMBEDDER, Catalog, default_cache
from models.network.loader import LoadedModel
from models.text import Text
from scheduler.assembly import Parts
from scheduler.clock import MonotonicClock, background
from scheduler.dispatcher import Dispatcher
from scheduler.length.online import fit
from scheduler.length.token_features import TokenFeatures
from scheduler.observers import PlanObserver, PlanObservers, RequestObservers
from scheduler.serving_time.machine import StepLearning, Submit
from scheduler.serving_time.profile_file import Conditions
from server.api.limits import Limits
from server.api.served_model import AnswerDefaults, ServedModel, seed_source
from server.batches.files import hold_folder
from server.cli.config import ServeConfig
from server.dashboard.feed import Feed
from server.dashboard.scene import Scene
from server.embeddings.embedder import TIMEOUT as EMBEDDING_TIMEOUT
from server.embeddings.embedder import TextEmbedder
from server.embeddings.worker import EmbeddingSetup, embed_texts
from server.grammars.compiler import GrammarCompiler
from server.grammars.process import TrialProcess
from server.grammars.trial import STACK, run_trials
from server.http.service import FilesPlace, Machine, Service
from server.lengths.instruction import InstructionSplit
from server.lengths.predictors import PredictorContext, fetch_predictor, open_lengths, open_predictor, token_features
from server.lengths.process import NicedProcess
from server.observe.gauges import Gauges, Sources
from server.observe.lag import measure_lag
from server.observe.metrics import Metrics
from server.observe.throughput import Throughput, log_throughput
from server.process.cache_paths import batches_path
from server.process.devices import conditions_of, prefix_cache_bytes, swap_bytes
from server.process.fetching import fetch_model
from server.process.loading import build_executor, load_models
from server.process.relay import Relay
from server.process.scheduling import learn_steps, parts_for
from server.process.watchdog import Watchdog
from server.process.worker_process import WorkerProcess

log = logging.getLogger(__name__)

NO_EMBEDDINGS = "none"
"""The --embedding-model that is none."""

STOP_TIMEOUT = 10.0
"""Seconds an executor has to end its last step."""


@asynccontextmanager
async def open_service(config: ServeConfig) -> AsyncIterator[Service]:
    """Load the model, start what predicts, the executors and the dispatcher; on leaving, stop and join them.

    Raises UserError with the remedy.
    """
    threading.stack_size(2 * STACK)  # of threads that are started from now on
    relay, clock = Relay(asyncio.get_running_loop()), MonotonicClock()
    metrics, feed, throughput = Metrics(_model_names(config)[0]), Feed(), Throughput()
    async with AsyncExitStack() as stack:
        predictor = await stack.enter_async_context(open_predictor(config))
        niced = stack.enter_context(closing(NicedProcess()))

        with ThreadPoolExecutor(1, "loader") as loader:  # gone before executors start: models/own_thread.py tells why
            loaded = await asyncio.get_running_loop().run_in_executor(loader, _load, config, relay.deliver)
        on_cpu = loaded.model.device.type == "cpu"
        context = PredictorContext(
            metrics.prediction.observe,
            metrics.late.observe,
            on_cpu,
            loaded.token_features,
            niced.submit,
            partial(niced.run, fit),
        )
        lengths = await stack.enter_async_context(open_lengths(config, predictor, clock, context))

        learner = ThreadPoolExecutor(1, "learner")
        steps = stack.enter_context(closing(learn_steps(loaded.conditions, learner.submit)))
        stack.enter_context(learner)  # ends before the last steps are learned from
        parts = _build_parts(config, loaded, steps, learner.submit, lengths, metrics)
        observers = RequestObservers((metrics, lengths, feed))
        dispatcher = Dispatcher(parts, loaded.executors, clock, observers, loaded.prefixes.length)
        watchdog = Watchdog(loaded.executors, dispatcher, config.stall_timeout)

        def receive(report: Report) -> None:
            metrics.receive(report)
            feed.receive(report)
            throughput.receive(report)
            watchdog.receive(report)
            dispatcher.receive(report)

        stack.enter_context(relay.send_to(receive))
        stack.enter_context(_run_executors(loaded.executors))
        await stack.enter_async_context(background(dispatcher.run(), "dispatcher"))
        await stack.enter_async_context(measure_lag(metrics.lag.observe))
        await stack.enter_async_context(log_throughput(throughput, dispatcher))
        await stack.enter_async_context(background(watchdog.run(), "watchdog of executors"))

        if loaded.grammars is not None:
            stack.enter_context(closing(loaded.grammars))
        model = _describe_model(config, loaded, stack.enter_context(ThreadPoolExecutor(1, "tokenizer")))
        feed.show(Scene(dispatcher, model.id, config.strategy, model.context_length))
        kept = loaded.store, loaded.prefixes
        Gauges(
            metrics, Sources(dispatcher, *kept, lengths.learned, config.strategy, feed, parts.learning, lengths.journal)
        )
        yield Service(
            dispatcher,
            model,
            executors=len(loaded.executors),
            limits=_limits(config),
            lengths=lengths,
            responsive=watchdog.responsive,
            metrics=metrics,
            feed=feed,
            embedder=await stack.enter_async_context(_open_embedder(config)),
            files=stack.enter_context(_files(config)),
            machine=Machine(loaded.conditions, steps.machine.model),
        )


@asynccontextmanager
async def _open_embedder(config: ServeConfig) -> AsyncIterator[TextEmbedder | None]:
    """What embeds texts for clients, whose process starts when it is first asked; None where nothing is to."""
    if config.embedding_model == NO_EMBEDDINGS:
        yield None
        return
    name, setup = Path(config.embedding_model).name, EmbeddingSetup(config.embedding_model, config.device)
    embedder = TextEmbedder(name, WorkerProcess("embedding model", embed_texts, setup, EMBEDDING_TIMEOUT))
    try:
        yield embedder
    finally:
        await embedder.aclose()


@contextmanager
def _files(config: ServeConfig) -> Iterator[FilesPlace | None]:
    """Where files and batches are kept; None for nowhere."""
    folder = batches_path(default_cache(), config.model)
    if not config.files_size:
        yield None
        return
    with hold_folder(folder) as held:
        if not held:
            log.info("another server holds %s: this one takes no files and no batches", folder)
        yield FilesPlace(folder, round(config.files_size * 2**30)) if held else None


@dataclass(frozen=True, slots=True)
class _Loaded:
    text: Text
    model: LoadedModel
    executors: tuple[Executor, ...]
    store: HostStore[Row]
    prefixes: PrefixCache[RowKv]
    grammars: GrammarCompiler | None
    conditions: Conditions
    """The conditions under which the executors run."""
    token_features: TokenFeatures | None


def fetch(config: ServeConfig) -> None:
    """Bring what is not there into the cache. In the main thread, where a signal can stop it cleanly."""
    fetch_model(config)
    if config.embedding_model not in (NO_EMBEDDINGS, DEFAULT_EMBEDDER):  # few need the default, which can be had later
        Catalog().resolve(config.embedding_model)
    fetch_predictor(config)


def _build_parts(
    config: ServeConfig,
    loaded: _Loaded,
    steps: StepLearning,
    submit: Submit,
    lengths: PlanObserver,
    metrics: Metrics,
) -> Parts:
    """The strategy's parts, whose batches are recorded and counted besides being learned from."""
    infos = [executor.info for executor in loaded.executors]
    parts = parts_for(config, infos, steps, submit)
    return replace(parts, observer=PlanObservers((parts.observer, lengths, metrics)))


def _load(config: ServeConfig, deliver: Deliver) -> _Loaded:
    models, text = load_models(config)
    store: HostStore[Row] = HostStore(swap_bytes(config))
    prefixes: PrefixCache[RowKv] = PrefixCache(prefix_cache_bytes(config))
    grammars = Grammars(text, models[0].vocab_size, models[0].end_token_ids)
    compiler = None if config.no_structured_outputs else _open_grammars(grammars, text, models[0])
    executors = [
        build_executor(config, index, model, text, store, deliver, grammars, prefixes)
        for index, model in enumerate(models)
    ]
    conditions, features = conditions_of(config, models[0]), token_features(config, models[0])
    return _Loaded(text, models[0], tuple(executors), store, prefixes, compiler, conditions, features)


def _open_grammars(grammars: Grammars, text: Text, model: LoadedModel) -> GrammarCompiler:
    """What compiles clients' grammars; the process in which they are tried starts meanwhile."""
    process = TrialProcess(run_trials, text.to_json(), model.vocab_size, tuple(model.end_token_ids))
    process.start()
    grammars.prepare()
    return GrammarCompiler(grammars, process)


@contextmanager
def _run_executors(executors: Sequence[Executor]) -> Iterator[None]:
    for executor in executors:
        executor.start()
    try:
        yield
    finally:
        for executor in executors:  # all are told before the first is waited for
            executor.post(Stop())
        for executor in executors:
            executor.stop(STOP_TIMEOUT)


def _describe_model(config: ServeConfig, loaded: _Loaded, pool: ThreadPoolExecutor) -> ServedModel:
    return ServedModel(
        names=_model_names(config),
        root=config.model,
        context_length=min(executor.info.context_length for executor in loaded.executors),
        vocab_size=min(loaded.text.vocab_size, loaded.model.vocab_size),
        text=loaded.text,
        tokenizer_pool=pool,
        grammars=loaded.grammars,
        defaults=AnswerDefaults(
            sampling=loaded.model.sampling_defaults.override(config.override_generation_config or {}),
            max_tokens=config.default_max_tokens or Catalog().default_max_tokens(config.model),
            stop_repetition=config.stop_repetition,
            next_seed=seed_source(config.seed),
            allow_replay=config.allow_replay,
            shares_prefixes=config.prefix_cache_shared,
            instruction_split=InstructionSplit(config.instruction_split),
        ),
    )


def _limits(config: ServeConfig) -> Limits:
    return Limits(
        max_body_bytes=config.max_body_bytes,
        body_timeout=config.body_timeout,
        send_timeout=config.send_timeout,
        sse_keep_alive_interval=config.sse_keep_alive_interval,
        max_num_queued_reqs=config.max_num_queued_reqs,
        max_num_queued_tokens=config.max_num_queued_tokens,
        max_file_bytes=config.max_file_bytes,
        stored_response_bytes=config.stored_response_bytes,
        refuse_unknown_fields=config.refuse_unknown_fields,
    )


def _model_names(config: ServeConfig) -> tuple[str, ...]:
    """Names that the API knows the model by: those given, or a path's last part."""
    path = Path(config.model).expanduser()
    own = path.resolve().name.removesuffix(".gguf") if path.exists() else config.model
    return config.served_model_name or (own,)
