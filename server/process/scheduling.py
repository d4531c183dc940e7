"""The scheduler's part of the composition root: from flags, executors and a profile to a strategy that works."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

from engine.messages import ExecutorInfo
from models.catalog.catalog import default_cache
from scheduler.assembly import Parts, assemble
from scheduler.batching.batcher import Limits
from scheduler.journal.file import JournalError, closed_batches
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.learning import Submit
from scheduler.serving_time.profile_file import Profile, digest
from scheduler.serving_time.refit import MOST_BATCHES, RefitData, refit_data
from scheduler.serving_time.served_batch import ClosedBatch, recorded_batch
from scheduler.strategy import STRATEGIES
from server.cli.config import ServeConfig
from server.process.cache_paths import journal_path

log = logging.getLogger(__name__)


def parts_for(
    config: ServeConfig,
    executors: Iterable[ExecutorInfo],
    serving_time: Bilinear | None,
    submit: Submit,
    earlier: RefitData | None = None,
) -> Parts:
    """The parts of the strategy that the flags name; raises UserError where something of it is missing here."""
    limits = Limits.of(config, config.max_num_batched_tokens, config.max_num_seqs)
    for info in executors:
        limits = limits.within(info.capacity_tokens, info.context_length, info.max_rows)
    return assemble(STRATEGIES[config.strategy], limits, serving_time, submit, earlier)


def refit_data_of(config: ServeConfig, profile: Profile | None) -> RefitData | None:
    """Timings that serving times are fitted again from: those of the profile, and of batches in the journal.

    None where the strategy does not estimate by a bilinear model. Serving begins whatever is wrong with the journal.
    """
    if profile is None or STRATEGIES[config.strategy].serving_time != "bilinear":
        return None
    try:
        return refit_data(profile.model, profile.timings, _served_batches(config, profile))
    except (JournalError, OSError, ValueError, RuntimeError) as error:
        log.warning("serving times begin as the profile has them, without what was served before: %s", error)
        return RefitData(profile.timings)


def _served_batches(config: ServeConfig, profile: Profile) -> list[ClosedBatch]:
    """The latest batches under the conditions of the profile that ended after it was measured."""
    if config.no_journal:
        return []
    path = journal_path(default_cache(), config.journal)
    since = datetime.fromisoformat(profile.measured_at).timestamp()
    entries = closed_batches(path, digest(profile.conditions), since=since, last=MOST_BATCHES)
    return [recorded_batch(entry) for entry in entries]
