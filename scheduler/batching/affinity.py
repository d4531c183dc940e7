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
        self._workers: OrderedDict[str, Worker] = OrderedDict()

    def worker(self, request: Request) -> Worker | None:
        """The executor that knows the beginning of a prompt; None where there is none, or it takes no rows."""
        worker = self._workers.get(request.prompt_cache_key)
        return worker if worker is not None and worker.serves else None

    def run(self, requests: Iterable[Request], worker: Worker) -> None:
        """Requests go to an executor."""
        for key in (request.prompt_cache_key for request in requests):
            if key:
                self._workers[key] = worker
                self._workers.move_to_end(key)
        while len(self._workers) > REMEMBERED:
            self._workers.popitem(last=False)
