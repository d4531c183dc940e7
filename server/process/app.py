"""The composition root: from a configuration to a service whose model is loaded and whose threads run.

The only place that knows all the parts. What they do is theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engine.executor import Executor
from engine.kv.host_store import HostStore
from engine.messages import Deliver, Report, Stop
from engine.row import Row
from engine.sampling.grammar import Grammars
from models.catalog.catalog import Catalog, default_cache
from models.network.loader import LoadedModel
from models.text import Text
from scheduler.assembly import Parts
from scheduler.clock import MonotonicClock, background
from scheduler.dispatcher import Dispatcher
from scheduler.observers import PlanObserver, PlanObservers, RequestObservers
from scheduler.serving_time.learning import Submit
from scheduler.serving_time.profile_file import Profile, digest, load_profile
from scheduler.serving_time.refit import RefitData
from server.api.service import Limits, Service, seed_source
from server.cli.config import ServeConfig
from server.dashboard.feed import Feed
from server.dashboard.scene import Introduction, Scene
from server.lengths.instruction import InstructionSplit
from server.lengths.lengths import Lengths
from server.lengths.predictors import PredictorContext, fetch_predictor, open_lengths, open_predictor
from server.observe.gauges import Gauges, Sources
from server.observe.lag import measured_lag
from server.observe.metrics import Metrics
from server.process.conditions import conditions_of
from server.process.devices import swap_bytes
from server.process.executors import build_executor
from server.process.loading import load_models
from server.process.refit_source import grounds_of
from server.process.scheduling import parts_for
from server.process.watchdog import Watchdog, kept

STOP_TIMEOUT = 10.0
"""Seconds an executor has to end its last step."""


@asynccontextmanager
async def open_service(config: ServeConfig) -> AsyncIterator[Service]:
    """Load the model, start what predicts, the executors and the dispatcher; on leaving, stop and join them.

    Raises CatalogError, LoadError, TextError, ProfileError and StrategyError with the remedy.
    """
    loop, clock = asyncio.get_running_loop(), MonotonicClock()

    def deliver(report: Report) -> None:
        # An executor that outlasts STOP_TIMEOUT has nobody left to report to.
        if not loop.is_closed():
            loop.call_soon_threadsafe(receive, report)

    def receive(report: Report) -> None:
        metrics.reported(report)
        feed.reported(report)
        vigil.reported(report)
        dispatcher.receive(report)

    metrics, feed = Metrics(_model_names(config)[0]), Feed()

    # Whatever computes must do so in a thread that is gone when the executors start: OpenMP counts the helpers of
    # each thread that ever computed, and when they outnumber the cores it puts waiting ones to sleep at once. That
    # made a decode step half as long again.
    async with open_predictor(config) as predictor:
        with ThreadPoolExecutor(1, "loader") as loader:
            loaded = await loop.run_in_executor(loader, _load, config, deliver)
        async with open_lengths(config, predictor, clock, _surroundings(loaded, metrics)) as lengths:
            with ThreadPoolExecutor(1, "tokenizer") as pool, ThreadPoolExecutor(1, "learner") as learner:
                parts = _observed(_parts(config, loaded, learner.submit), lengths, metrics)
                dispatcher = Dispatcher(parts, loaded.executors, clock, RequestObservers((metrics, lengths, feed)))
                vigil = Watchdog(loaded.executors, dispatcher, config.stall_timeout)
                with _running(loaded.executors):
                    lag = measured_lag(metrics.lag.labels(**metrics.labels).observe)
                    async with background(dispatcher.run(), "dispatcher"), lag, kept(vigil):
                        service = _service(config, loaded, dispatcher, pool, lengths)
                        feed.show(_scene(config, service, dispatcher))
                        learned, taught = lengths.learned, parts.learning
                        Gauges(metrics, Sources(dispatcher, loaded.store, learned, config.strategy, feed, taught))
                        yield replace(service, metrics=metrics, feed=feed, responsive=vigil.responsive)


@dataclass(frozen=True, slots=True)
class _Loaded:
    text: Text
    model: LoadedModel
    executors: tuple[Executor, ...]
    store: HostStore[Row]
    grammars: Grammars
    conditions: str
    """Under which the executors run."""
    profile: Profile | None
    """This machine's, if one was taken under these conditions."""
    grounds: RefitData | None
    """What serving times are fitted again from; None where nobody does."""


def fetch(config: ServeConfig) -> None:
    """Bring what is not there into the cache. In the main thread, where a signal can stop it cleanly."""
    Catalog().resolve(config.model)
    fetch_predictor(config)


def _parts(config: ServeConfig, loaded: _Loaded, submit: Submit) -> Parts:
    infos = [executor.info for executor in loaded.executors]
    serving_time = None if loaded.profile is None else loaded.profile.model
    return parts_for(config, infos, serving_time, submit, loaded.grounds)


def _surroundings(loaded: _Loaded, metrics: Metrics) -> PredictorContext:
    on_cpu = loaded.model.device.type == "cpu"
    return PredictorContext(metrics.prediction.observe, metrics.late.observe, loaded.conditions, on_cpu)


def _observed(parts: Parts, *observers: PlanObserver) -> Parts:
    """Besides who learns from batches, somebody records and counts them."""
    return replace(parts, observer=PlanObservers(observers if parts.observer is None else (parts.observer, *observers)))


def _scene(config: ServeConfig, service: Service, dispatcher: Dispatcher) -> Scene:
    introduction = Introduction(service.model_id, config.strategy, service.context_length)
    return Scene(dispatcher, introduction, dispatcher.expected_wait)


def _load(config: ServeConfig, deliver: Deliver) -> _Loaded:
    models, text = load_models(config)
    store: HostStore[Row] = HostStore(swap_bytes(config))
    grammars = Grammars(text, models[0].vocab_size, models[0].end_token_ids)
    grammars.prepare()
    executors = [
        build_executor(config, index, model, text, store, deliver, grammars) for index, model in enumerate(models)
    ]
    conditions = conditions_of(config, models[0])
    profile = load_profile(default_cache(), conditions)
    grounds = grounds_of(config, profile)
    return _Loaded(text, models[0], tuple(executors), store, grammars, digest(conditions), profile, grounds)


@contextmanager
def _running(executors: Sequence[Executor]) -> Iterator[None]:
    for executor in executors:
        executor.start()
    try:
        yield
    finally:
        for executor in executors:  # all are told before the first is waited for
            executor.post(Stop())
        for executor in executors:
            executor.stop(STOP_TIMEOUT)


def _service(
    config: ServeConfig, loaded: _Loaded, dispatcher: Dispatcher, pool: ThreadPoolExecutor, lengths: Lengths
) -> Service:
    return Service(
        dispatcher=dispatcher,
        text=loaded.text,
        model_names=_model_names(config),
        model_root=config.model,
        context_length=min(executor.info.context_length for executor in loaded.executors),
        vocab_size=min(loaded.text.vocab_size, loaded.model.vocab_size),
        sampling_defaults=loaded.model.sampling_defaults.override(config.override_generation_config or {}),
        stop_repetition=config.stop_repetition,
        tokenizer_pool=pool,
        default_max_tokens=config.default_max_tokens or Catalog().default_max_tokens(config.model),
        grammars=loaded.grammars,
        executors=len(loaded.executors),
        next_seed=seed_source(config.seed),
        limits=_limits(config),
        allow_replay=config.allow_replay,
        foresight=lengths,
        instruction_split=InstructionSplit(config.instruction_split),
    )


def _limits(config: ServeConfig) -> Limits:
    return Limits(
        max_body_bytes=config.max_body_bytes,
        body_timeout=config.body_timeout,
        stall_timeout=config.send_timeout,
        sse_keep_alive_interval=config.sse_keep_alive_interval,
        max_num_queued_reqs=config.max_num_queued_reqs,
        max_num_queued_tokens=config.max_num_queued_tokens,
    )


def _model_names(config: ServeConfig) -> tuple[str, ...]:
    """The names the API knows the model by: as given, or a path's last part."""
    path = Path(config.model).expanduser()
    own = path.resolve().name.removesuffix(".gguf") if path.exists() else config.model
    return config.served_model_name or (own,)
