"""`lengthwise paper --real`: the real engine as a player, in this process and without a server.

The composition root of that: models, executors, their profile. Knows no paper's experiments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from loadgen.compare.machine import measure_theft
from loadgen.experiments.paper.baton.tables import run_baton
from loadgen.experiments.paper.hardware import LENGTH_SCALE, REQUESTS, Hardware
from loadgen.experiments.paper.options import PaperOptions
from loadgen.experiments.paper.plan import NotHere
from loadgen.experiments.paper.run import PAPERS, run_paper
from loadgen.experiments.paper.trial import Course, Player, Trial, assemble_course, prediction_for, trial
from loadgen.experiments.playing import random_prompts
from loadgen.experiments.real_engine import Engine, load_engine, new_executors
from loadgen.experiments.recorder import Prompts, Recorder
from loadgen.simulate.simulation import Simulation, Watch
from loadgen.workload.lengths import Lengths
from models.errors import UserError
from models.network.loader import LoadError
from models.network.quantization import Quantization
from models.own_thread import run_in_own_thread
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import Strategy
from scheduler.worker import Port
from server.cli.config import ServeConfig, load_config
from server.composition.devices import cores, cuda_devices, device_name, threads
from server.composition.loading import load_models
from server.process.relay import Relay

EXECUTORS: Mapping[str, int] = MappingProxyType({"magnus": 1, "scls": 2, "ssjf": 1})
"""Executors on a CPU by default: SCLS balances load, which takes two at least."""


def run_real_paper(asked: PaperOptions) -> int:
    """Measure and print; returns the exit code. Raises UserError."""
    if asked.paper == "baton":
        return run_baton(asked)
    return run_paper(asked, partial(_open, asked))


def _open(asked: PaperOptions) -> tuple[Hardware, Player]:
    """Load the engine; raises UserError where the lengths do not fit, and what `load_engine` raises."""
    config = _config(asked)
    engine = run_in_own_thread(partial(load_engine, config))
    hardware = Hardware(
        cost=engine.profile,
        executors=len(engine.models),
        chunk_tokens=config.max_num_batched_tokens,
        about=_about(engine),
        length_scale=LENGTH_SCALE if asked.length_scale is None else asked.length_scale,
        loads=asked.loads,
        requests=REQUESTS if asked.requests is None else asked.requests,
        duration=asked.duration,
        rounds=1 if asked.rounds is None else asked.rounds,
    )
    context, most = hardware.context(PAPERS[asked.paper].longest), engine.models[0].context_length
    if context > most:
        raise UserError(
            f"rows of {context} tokens, prompt and answer, exceed the model's context of {most}: give a --length-scale "
            f"below {hardware.length_scale:g}"
        )
    return hardware, EnginePlayer(engine)


def _config(asked: PaperOptions) -> ServeConfig:
    """The settings of environment and flags; memory, slots and context are each experiment's own."""
    given = {"model": asked.model, "executors": asked.executors}
    config = load_config({name: value for name, value in given.items() if value is not None}, os.environ, None)
    if config.executors or cuda_devices(config):
        return config
    return replace(config, executors=min(EXECUTORS[asked.paper], cores()))


def _about(engine: Engine) -> str:
    model, config = engine.models[0], engine.config
    kept = "" if model.quantization is Quantization.NONE else f", weights in {model.quantization}"
    share = f", {threads(config)} threads each" if model.device.type == "cpu" else ""
    dtype = str(model.kv.dtype).removeprefix("torch.")
    return f"{config.model} in {dtype}{kept} on {device_name(model.device)}{share}"


class EnginePlayer:
    """A Player on new executors for each course; models are loaded once for each way of keeping their weights."""

    def __init__(self, engine: Engine) -> None:
        self._engines: dict[str | None, Engine] = {None: engine}

    def __call__(self, course: Course, requests: Sequence[Lengths], seed: int, watch: Watch) -> Trial:
        """Play a course. Raises UserError, and NotHere where weights cannot be kept as its strategy says."""
        engine = _fitted(self._engine(course.strategy), course)
        prompts = random_prompts(requests, engine.vocabulary, seed)
        with new_executors(engine) as rig:
            stolen = measure_theft()
            done = rig.run(record_course(course, rig.executors, rig.relay, requests, prompts, seed, watch))
            return replace(trial(*done), stolen=100 * (stolen() or 0.0))

    def _engine(self, strategy: Strategy) -> Engine:
        kept = strategy.quantization
        if kept not in self._engines:
            plain = self._engines[None]
            config = replace(plain.config, strategy=strategy.name, quantization="auto")
            try:
                models, text = run_in_own_thread(partial(load_models, config))
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


async def record_course(
    course: Course,
    ports: Sequence[Port],
    relay: Relay,
    requests: Sequence[Lengths],
    prompts: Prompts,
    seed: int,
    watch: Watch,
) -> tuple[Simulation, float]:
    """Serve the requests, in order of arrival, on executors that run and report to the relay.

    `seed` is of the predictions' errors. Returns the record, and the share of slices that ended early. Raises UserError
    when a request fails.
    """
    recorder = Recorder(ports, relay, requests, prompts, course.max_tokens)
    prediction, serving_time = prediction_for(course), _serving_time(course)
    parts, _ = assemble_course(course, serving_time)
    await recorder.warm_up(parts, prediction.source(0))
    parts, slices = assemble_course(course, serving_time)
    done = await recorder.record(parts, prediction.source(seed), watch)
    return done, slices.early_share


def _serving_time(course: Course) -> Bilinear | None:
    """The machine's profile; None for a strategy that keeps weights in its own way, which was not profiled."""
    cost = course.machine.cost
    return cost if isinstance(cost, Bilinear) and course.strategy.quantization is None else None
