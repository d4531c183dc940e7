"""The scheduler's part of the composition root: from flags, executors and a profile to a strategy that works."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from engine.measure.timing import Timings
from engine.messages import ExecutorInfo
from models.catalog.catalog import default_cache
from models.errors import UserError
from scheduler.assembly import Parts, assemble
from scheduler.batching.batcher import Limits
from scheduler.serving_time.bilinear import Bilinear, fit_errors
from scheduler.serving_time.machine import Keep, MachineModel, StepLearning, Submit
from scheduler.serving_time.profile_file import Conditions, Profile, load_profile, write_profile
from scheduler.strategy import STRATEGIES
from server.cli.config import ServeConfig
from server.version import VERSION

log = logging.getLogger(__name__)

KEEP_INTERVAL = 60.0
"""Seconds between two times that what was learned is written to the cache."""


def parts_for(
    config: ServeConfig, executors: Iterable[ExecutorInfo], machine: Bilinear | StepLearning | None, submit: Submit
) -> Parts:
    """The parts of the strategy that the flags name; raises UserError where something of it is missing here."""
    limits = Limits.of(config, config.max_num_batched_tokens, config.max_num_seqs)
    for info in executors:
        limits = limits.within(info.capacity_tokens, info.context_length, info.max_rows)
    return assemble(STRATEGIES[config.strategy], limits, machine, submit)


def learn_steps(conditions: Conditions, submit: Submit) -> StepLearning:
    """Learn what steps take under these conditions: from what the cache has on, and keep it there."""
    try:
        profile = load_profile(default_cache(), conditions)
    except UserError as error:
        log.warning("prices are learned anew: %s", error)
        profile = None
    keep = _keep(conditions)
    if profile is None:
        return StepLearning(MachineModel(), submit, keep=keep)
    return StepLearning(MachineModel(profile.model), submit, timings=profile.timings, keep=keep)


def _keep(conditions: Conditions) -> Keep:
    """A way to keep what was learned in the cache, from time to time; serving goes on where that fails."""
    written: float | None = None

    def keep(model: Bilinear, timings: Timings) -> None:
        nonlocal written
        now = time.monotonic()
        if written is not None and now < written + KEEP_INTERVAL:
            return
        written = now
        measured_at = datetime.now(UTC).isoformat(timespec="seconds")
        profile = Profile(conditions, measured_at, VERSION, model, fit_errors(model, timings), timings)
        try:
            write_profile(default_cache(), profile)
        except UserError as error:
            log.warning("the prices that were learned are not kept: %s", error)

    return keep
