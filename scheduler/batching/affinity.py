"""Prefers the executor that holds a prompt's prefix."""

from collections.abc import Iterable

from models.recent import Recent
from scheduler.request import Request
from scheduler.worker import Worker

REMEMBERED = 65536  # keys, LRU


class Affinity:
    """By `prompt_cache_key`."""

    def __init__(self) -> None:
        self.workers = Recent[str, Worker](REMEMBERED)

    def worker(self, request: Request) -> Worker | None:
        """None where unknown or unavailable."""
        worker = self.workers.get(request.prompt_cache_key)
        return worker if worker is not None and worker.serves else None

    def run(self, requests: Iterable[Request], worker: Worker) -> None:
        for request in requests:
            self.workers[request.prompt_cache_key] = worker
