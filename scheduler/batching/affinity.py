"""Sends requests whose prompts begin alike to the executor that has the prefix; none waits for it."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.recent import Recent
from scheduler.request import Request
from scheduler.worker import Worker

REMEMBERED = 65536  # keys, most recently used


class Affinity:
    """The executor of each `prompt_cache_key`'s last request."""

    def __init__(self) -> None:
        self.workers = Recent[str, Worker](REMEMBERED)  # read only

    def worker(self, request: Request) -> Worker | None:
        """None where unknown, or it takes no rows."""
        worker = self.workers.get(request.prompt_cache_key)
        return worker if worker is not None and worker.serves else None

    def run(self, requests: Iterable[Request], worker: Worker) -> None:
        for request in requests:
            self.workers[request.prompt_cache_key] = worker
