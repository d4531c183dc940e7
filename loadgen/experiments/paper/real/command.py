"""`lengthwise paper --real`: the papers' experiments on the real engine, in this process and without a server.

The composition root of that: models, executors, a player. What to play, and what to make of it, is loadgen.paper's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from loadgen.bench.result import ResultError
from loadgen.experiments.paper.real.baton import run_baton
from loadgen.experiments.paper.real.ground import LENGTH_SCALE, Ground
from loadgen.experiments.paper.real.plan import NotHere
from loadgen.experiments.paper.real.play import play_course
from loadgen.experiments.paper.real.run import EXECUTORS, run_real
from loadgen.experiments.paper.run import PAPERS, PaperError
from loadgen.experiments.paper.trial import Course, Player, Trial
from loadgen.experiments.real_engine import Engine, load_engine, new_executors
from loadgen.simulate.playing import PlayError, random_prompts
from loadgen.simulate.simulation import SimulationError, Watch
from loadgen.workload.errors import WorkloadError
from loadgen.workload.lengths import Lengths
from models.catalog.catalog import CatalogError
from models.network.loader import LoadError
from models.network.quantization import Quantization
from models.text import TextError
from scheduler.assembly import StrategyError
from scheduler.serving_time.profile_file import ProfileError
from scheduler.strategy import Strategy
from server.cli.config import ServeConfig, load_config
from server.process.conditions import device_name
from server.process.devices import cores, cuda_devices, threads
from server.process.loading import load_models

FAILURES = (
    CatalogError, LoadError, TextError, ProfileError, StrategyError, SimulationError, WorkloadError, PlayError,
    ResultError,
)  # fmt: skip
"""What has an explanation that the user can act on; errors of the flags are the command's."""

T = TypeVar("T")


def run_real_paper(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code. Raises PaperError."""
    if args.paper == "baton":
        return run_baton(args)
    try:
        return run_real(args, partial(_open, args))
    except FAILURES as error:
        print(f"lengthwise: error: {error}", file=sys.stderr)
        return 1


def _open(args: argparse.Namespace) -> tuple[Ground, Player]:
    """What is measured; raises PaperError where it does not fit, and what `load_engine` raises."""
    config = _config(args)
    engine = _apart(partial(load_engine, config))
    ground = Ground(
        cost=engine.profile,
        executors=len(engine.models),
        chunk_tokens=config.max_num_batched_tokens,
        about=_about(engine),
        length_scale=LENGTH_SCALE if args.length_scale is None else args.length_scale,
        loads=args.loads,
        duration=args.duration,
        rounds=1 if args.rounds is None else args.rounds,
    )
    context, most = ground.context(PAPERS[args.paper].longest), engine.models[0].context_length
    if context > most:
        raise PaperError(
            f"rows of {context} tokens, prompt and answer, exceed the model's context of {most}: give a --length-scale "
            f"below {ground.length_scale:g}"
        )
    return ground, EnginePlayer(engine)


def _config(args: argparse.Namespace) -> ServeConfig:
    """As the environment has it, and the flags; memory, slots and context are each experiment's own."""
    given = {"model": args.model, "executors": args.executors}
    config = load_config({name: value for name, value in given.items() if value is not None}, os.environ, None)
    if config.executors or cuda_devices(config):
        return config
    return replace(config, executors=min(EXECUTORS[args.paper], cores()))


def _about(engine: Engine) -> str:
    model, config = engine.models[0], engine.config
    kept = "" if model.quantization is Quantization.NONE else f", weights in {model.quantization}"
    share = f", {threads(config)} threads each" if model.device.type == "cpu" else ""
    dtype = str(model.kv.dtype).removeprefix("torch.")
    return f"{config.model} in {dtype}{kept} on {device_name(model.device)}{share}"


def _apart(work: Callable[[], T]) -> T:
    """In a thread that ends, see server.process.app: what computes here must be gone later."""
    with ThreadPoolExecutor(1, "loader") as loader:
        return loader.submit(work).result()


class EnginePlayer:
    """A Player on new executors for each course; models are loaded once for each way of keeping their weights."""

    def __init__(self, engine: Engine) -> None:
        self._engines: dict[str | None, Engine] = {None: engine}

    def __call__(self, course: Course, requests: Sequence[Lengths], seed: int, watch: Watch) -> Trial:
        """Raises PlayError and StrategyError, and NotHere where weights cannot be kept as a strategy says."""
        engine = _fitted(self._engine(course.strategy), course)
        prompts = random_prompts(requests, engine.vocabulary, seed)
        with new_executors(engine) as rig:
            return rig.run(play_course(course, rig.executors, rig.relay, requests, prompts, seed, watch))

    def _engine(self, strategy: Strategy) -> Engine:
        kept = strategy.quantization
        if kept not in self._engines:
            plain = self._engines[None]
            config = replace(plain.config, strategy=strategy.name, quantization="auto")
            try:
                models, text = _apart(partial(load_models, config))
            except LoadError as error:
                raise NotHere(str(error)) from error
            self._engines[kept] = Engine(config, models, text, plain.profile)
        return self._engines[kept]


def _fitted(engine: Engine, course: Course) -> Engine:
    """The engine with as much of everything as the course has."""
    machine, models = course.machine, engine.models[: course.machine.workers]
    config = replace(
        engine.config,
        max_num_seqs=machine.max_num_seqs,
        max_model_len=machine.context_length,
        kv_cache_memory=(machine.capacity_tokens + 0.5) * models[0].kv.bytes_per_token / 2**30,
    )
    return replace(engine, config=config, models=models)
