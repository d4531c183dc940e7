"""The real engine in this process, without a server around it, for measurements."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import uvloop

from engine.executor import Executor
from engine.kv.host_store import HostStore
from engine.messages import Stop
from engine.row import Row
from models.catalog.catalog import default_cache
from models.errors import UserError
from models.network.loader import LoadedModel
from models.own_thread import run_in_own_thread
from models.text import Text
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.profile_file import load_profile
from server.cli.config import ServeConfig
from server.composition.devices import conditions_of, swap_bytes
from server.composition.loading import build_executor, load_models
from server.process.relay import Relay

STOP_TIMEOUT = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Engine:
    """Models, text and profile, which all strategies share."""

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
        raise UserError(
            f"there is no profile of {config.model} under these settings: run `lengthwise profile "
            f"{config.model}{executors}` first, with the same settings"
        )
    return Engine(config, models, text, profile.model)


@dataclass(frozen=True, slots=True)
class Rig:
    """New executors, and an event loop on which their reports arrive."""

    executors: tuple[Executor, ...]
    relay: Relay
    _runner: asyncio.Runner

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Start the executors and do the work on the loop; once."""
        for executor in self.executors:
            executor.start()
        return self._runner.run(work)


@contextmanager
def new_executors(engine: Engine) -> Iterator[Rig]:
    """Build executors, which are not started yet; on leaving they are stopped if they were."""
    store: HostStore[Row] = HostStore(swap_bytes(engine.config))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        relay = Relay(runner.get_loop())
        executors = tuple(
            run_in_own_thread(partial(build_executor, engine.config, index, model, engine.text, store, relay.deliver))
            for index, model in enumerate(engine.models)
        )
        try:
            yield Rig(executors, relay, runner)
        finally:
            for executor in executors:
                executor.post(Stop())
            for executor in executors:
                if executor.alive:
                    executor.stop(STOP_TIMEOUT)
