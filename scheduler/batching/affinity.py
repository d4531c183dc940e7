"""Requests whose prompts begin alike, as those of a conversation do, go to the executor that has read the beginning.

None waits for its executor: where that can take no more, another reads the prompt anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from scheduler.plan import Worker
from scheduler.request import Request

REMEMBERED = 65536
"""Keys whose executor is remembered, the latest used."""


class Affinity:
    """The executor that was given the last request of each `prompt_cache_key`."""

    def __init__(self) -> None:
        self.workers: OrderedDict[str, Worker] = OrderedDict()
        """By key. To be read only."""

    def worker(self, request: Request) -> Worker | None:
        """The executor that knows the beginning of a prompt; None where there is none, or it takes no rows."""
        worker = self.workers.get(request.prompt_cache_key)
        return worker if worker is not None and worker.serves else None

    def run(self, requests: Iterable[Request], worker: Worker) -> None:
        """Requests with a key go to an executor."""
        for request in requests:
            self.workers[request.prompt_cache_key] = worker
            self.workers.move_to_end(request.prompt_cache_key)
        while len(self.workers) > REMEMBERED:
            self.workers.popitem(last=False)
