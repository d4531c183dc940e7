"""Estimates that come when their requests have gone on with a guess, and who is to hear of them.

It knows neither who estimates nor what is made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from scheduler.length.prediction import Answer, Estimate
from scheduler.request import Request

Hear: TypeAlias = Callable[[Estimate], bool]
"""Whether it was of use."""


class LateEstimates:
    """Event loop only. Requests may share an answer, as those of one prompt do."""

    def __init__(self) -> None:
        self.count = 0
        """Requests to which theirs was of use."""
        self._hearers: dict[Answer, dict[Request, Hear]] = {}
        self._answers: dict[Request, Answer] = {}

    def expect(self, request: Request, answer: Answer, hear: Hear) -> None:
        """`hear` is told the estimate if it comes before the request is forgotten."""
        if answer not in self._hearers:
            self._hearers[answer] = {}
            answer.add_done_callback(self._came)
        self._hearers[answer][request] = hear
        self._answers[request] = answer

    def forget(self, request: Request) -> None:
        """A request has ended. An answer that nobody expects any more is cancelled."""
        answer = self._answers.pop(request, None)
        if answer is None:
            return
        hearers = self._hearers[answer]
        del hearers[request]
        if not hearers:
            answer.cancel()

    def _came(self, answer: Answer) -> None:
        hearers = self._hearers.pop(answer)
        for request in hearers:
            del self._answers[request]
        estimate = None if answer.cancelled() else answer.result()
        if estimate is not None:
            self.count += sum([hear(estimate) for hear in hearers.values()])
