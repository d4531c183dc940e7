"""What serving times are fitted again from when the server starts: its profile, and the batches that the journal has.

It decides which batches count. What is made of them is the scheduler's.
"""

from __future__ import annotations

import logging
from datetime import datetime

from models.catalog.catalog import default_cache
from scheduler.journal.file import JournalError, closed_batches
from scheduler.serving_time.profile_file import Profile, digest
from scheduler.serving_time.refit import MOST_BATCHES, RefitData, refit_data
from scheduler.serving_time.served_batch import ClosedBatch, recorded_batch
from scheduler.strategy import STRATEGIES
from server.cli.config import ServeConfig
from server.process.cache_paths import journal_path

log = logging.getLogger(__name__)


def grounds_of(config: ServeConfig, profile: Profile | None) -> RefitData | None:
    """None where nobody estimates by a bilinear model here. Whatever is wrong with the journal, serving begins."""
    if profile is None or STRATEGIES[config.strategy].serving_time != "bilinear":
        return None
    try:
        return refit_data(profile.model, profile.timings, _earlier(config, profile))
    except (JournalError, OSError, ValueError, RuntimeError) as error:
        log.warning("serving times begin as the profile has them, without what was served before: %s", error)
        return RefitData(profile.timings)


def _earlier(config: ServeConfig, profile: Profile) -> list[ClosedBatch]:
    """The latest batches under the conditions of the profile that ended after it was measured."""
    if config.no_journal:
        return []
    path = journal_path(default_cache(), config.journal)
    since = datetime.fromisoformat(profile.measured_at).timestamp()
    entries = closed_batches(path, digest(profile.conditions), since=since, last=MOST_BATCHES)
    return [recorded_batch(entry) for entry in entries]
