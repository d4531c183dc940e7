"""The scheduler's part of the composition root."""

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from engine.measure.timing import Timings
from engine.messages import ExecutorInfo
from models.catalog.catalog import default_cache
from models.errors import UserError
from scheduler.assembly import SchedulerParts, assemble, can_share
from scheduler.batching.batcher import BatchLimits
from scheduler.learner import Submit
from scheduler.serving_time.bilinear import Bilinear, fit_errors
from scheduler.serving_time.machine import MachineModel, StepLearning
from scheduler.serving_time.profile_file import Conditions, Profile, load_profile, write_profile
from scheduler.strategy import STRATEGIES
from server.config import FrontConfig, ServeConfig
from server.keys import Keyring, read_keys
from server.version import VERSION

log = logging.getLogger(__name__)


def parts_for(
    config: ServeConfig, executors: Iterable[ExecutorInfo], machine: Bilinear | StepLearning | None, submit: Submit
) -> SchedulerParts:
    """Raises UserError where something is missing for the strategy."""
    infos = tuple(executors)
    chunk = min(config.chunk_tokens(info.device) for info in infos)
    limits = BatchLimits.of(config, chunk, min(info.max_rows for info in infos))
    for info in infos:
        limits = limits.within(info.capacity_tokens, info.context_length, info.max_rows)
    limits = replace(limits, shares=shares_of(config))
    return assemble(STRATEGIES[config.strategy], limits, machine, submit)


def shares_of(config: FrontConfig) -> Mapping[str, float] | None:
    keys = read_keys(config.api_key, config.api_key_file, os.environ)
    shares = Keyring(keys, keys).shares
    by_default = len(shares) > 1 and can_share(STRATEGIES[config.strategy])
    return shares if (by_default if config.fair is None else config.fair) else None


def learn_steps(conditions: Conditions, submit: Submit, timings: Timings) -> StepLearning:
    """Starts from the newer of the measured and the learned profile, else from `timings`; saved beside the former."""
    found = [one for one in (_load(conditions, learned=learned) for learned in (False, True)) if one is not None]
    newest = max(found, key=lambda profile: profile.measured_at, default=None)
    model, timings = (None, timings) if newest is None else (newest.model, newest.timings)
    return StepLearning(MachineModel(model), submit, timings=timings, keep=partial(_keep, conditions))


def make_profile(conditions: Conditions, model: Bilinear, timings: Timings) -> Profile:
    measured_at = datetime.now(UTC).isoformat(timespec="seconds")
    return Profile(conditions, measured_at, VERSION, model, fit_errors(model, timings), timings)


def _load(conditions: Conditions, *, learned: bool) -> Profile | None:
    try:
        profile = load_profile(default_cache(), conditions, learned=learned)
    except UserError as error:
        log.warning("prices are learned anew: %s", error)
        return None
    return profile if profile is not None and profile.model.gains_by_rows else None


def _keep(conditions: Conditions, model: Bilinear, timings: Timings) -> None:
    try:
        write_profile(default_cache(), make_profile(conditions, model, timings), learned=True)
    except UserError as error:
        log.warning("the prices that were learned are not kept: %s", error)
