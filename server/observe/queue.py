"""The scheduler's queue as metrics and the dashboard read it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from scheduler.request import Request
from scheduler.worker import Worker


class Queue(Protocol):
    """The part of scheduler.dispatcher.Dispatcher that is read."""

    @property
    def waiting(self) -> Collection[Request]: ...
    @property
    def workers(self) -> Collection[Worker]: ...
    @property
    def not_begun(self) -> Collection[Request]: ...
    @property
    def requests_waiting(self) -> int: ...
    @property
    def requests_running(self) -> int: ...
    def now(self) -> float: ...
