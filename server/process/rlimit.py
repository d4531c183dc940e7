"""How many files this process may have open: as many as the system allows, and whether that is enough."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

OWN_FILES = 256
"""Files that are no connections: weights, libraries, the journal, devices."""


def raise_file_limit(connections: int) -> None:
    """Let each connection have its file; shells allow 1024 by default, and more may be asked for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OWN_FILES
    if _unlimited(soft) or soft >= wanted:
        return
    allowed = wanted if _unlimited(hard) else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning(
            "only %d files may be open at a time: fewer than --max-connections %d may connect; raise LimitNOFILE",
            allowed,
            connections,
        )


def _unlimited(limit: int) -> bool:
    return limit == resource.RLIM_INFINITY
