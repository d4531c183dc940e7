"""Estimates that come when their requests have gone on with a guess, and who is to hear of them.

It knows neither who estimates nor what is made of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from scheduler.length.prediction import Answer, Estimate
from scheduler.request import Request

Hear: TypeAlias = Callable[[Estimate], bool]
"""Whether it was of use."""


class LateEstimates:
    """Event loop only. Requests may share an answer, as those of one prompt do."""

    def __init__(self, observe: Callable[[float], None] = lambda seconds: None) -> None:
        """`observe` is told how many seconds each request went without its estimate, if that was of use."""
        self._observe = observe
        self._hearers: dict[Answer, dict[Request, tuple[Hear, float]]] = {}
        self._answers: dict[Request, Answer] = {}

    def expect(self, request: Request, answer: Answer, hear: Hear) -> None:
        """`hear` is told the estimate if it comes before the request is forgotten."""
        if answer not in self._hearers:
            self._hearers[answer] = {}
            answer.add_done_callback(self._came)
        self._hearers[answer][request] = hear, asyncio.get_running_loop().time()
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
        if estimate is None:
            return
        now = asyncio.get_running_loop().time()
        for hear, since in hearers.values():
            if hear(estimate):
                self._observe(now - since)
