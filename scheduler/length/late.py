"""Estimates that come when their requests have gone on with a guess, and the callbacks that take them.

It knows neither how lengths are estimated nor how estimates are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from scheduler.length.prediction import Answer, Estimate
from scheduler.request import Request

Receive: TypeAlias = Callable[[Estimate], bool]
"""Takes a late estimate; returns whether it was of use."""


class LateEstimates:
    """Event loop only. Requests may share an answer, as those of one prompt do."""

    def __init__(self, observe: Callable[[float], None] = lambda seconds: None) -> None:
        """`observe` is called with the seconds that each request went without its estimate, if that was of use."""
        self._observe = observe
        self._receivers: dict[Answer, dict[Request, tuple[Receive, float]]] = {}
        self._answers: dict[Request, Answer] = {}

    def expect(self, request: Request, answer: Answer, receive: Receive) -> None:
        """Call `receive` with the estimate if it comes before the request is forgotten."""
        if answer not in self._receivers:
            self._receivers[answer] = {}
            answer.add_done_callback(self._came)
        self._receivers[answer][request] = receive, asyncio.get_running_loop().time()
        self._answers[request] = answer

    def forget(self, request: Request) -> None:
        """Forget a request that has ended. An answer that no request expects any more is cancelled."""
        answer = self._answers.pop(request, None)
        if answer is None:
            return
        receivers = self._receivers[answer]
        del receivers[request]
        if not receivers:
            answer.cancel()

    def _came(self, answer: Answer) -> None:
        receivers = self._receivers.pop(answer)
        for request in receivers:
            del self._answers[request]
        estimate = None if answer.cancelled() else answer.result()
        if estimate is None:
            return
        now = asyncio.get_running_loop().time()
        for receive, since in receivers.values():
            if receive(estimate):
                self._observe(now - since)
