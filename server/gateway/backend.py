"""A backend as an executor for the scheduler."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine import messages
from engine.messages import FinishReason, RowId, RowUpdate
from scheduler.request import Request
from server.gateway.health import Health
from server.gateway.slots import InferredSlots

log = logging.getLogger(__name__)

ROOM = 10**9  # tokens of an unknown backend

PERIOD = 0.25  # seconds between token reports; first tokens and ends are immediate

NO_API = "has no path of an API (404): --backend wants the URL that stands before /chat/completions"

SILENT = 10.0  # seconds without a byte until a backend with calls is asked for its models


class Waiting(Protocol):
    """A call that waits for a backend."""

    request: Request

    @property
    def streams(self) -> bool:
        """Starts long before it ends."""

    def go(self, backend: Backend) -> None: ...

    def leave(self) -> None: ...


@dataclass(eq=False, slots=True)
class Backend:
    """A port of the dispatcher. Event loop only; nothing blocks or raises."""

    index: int
    url: str  # API base, as http://127.0.0.1:8001/v1
    deliver: messages.Deliver
    slots: InferredSlots
    calls: dict[RowId, Waiting]  # of the whole gateway
    key: str | None = None  # bearer token; None for the client's
    alive: bool = True
    fault: str | None = None  # why it fails; None while it answers
    salts: bool = False  # takes `cache_salt`
    merges: bool = True  # whole answers from streams; false after a failure
    merges_tools: bool = True  # with tool calls
    tells: bool = False  # metrics report its queue
    estimates: bool = False  # is a server or gateway of ours
    room: int = ROOM  # tokens of KV cache
    context: int = ROOM  # tokens of a prompt and its answer
    health: Health = field(default_factory=Health)
    answered: bool = False  # since the start
    oversized: set[str] = field(default_factory=set)  # its pages that were logged as such
    _failed: float = 0.0  # when it began to fail
    _heard: float = 0.0
    _asked: dict[RowId, Waiting] = field(default_factory=dict)  # without a byte so far
    _coming: dict[RowId, Callable[[], int]] = field(default_factory=dict)  # counts of new tokens of answers under way
    _finishes: bool | None = None  # its streams say that they end; None while unknown
    _step: int = 0
    _due: asyncio.TimerHandle | None = None

    @property
    def info(self) -> messages.ExecutorInfo:
        most = len(self._coming) + 1 if self.health.tried else self.slots.most
        return messages.ExecutorInfo(self.index, self.url, self.room, most, self.context)

    @property
    def failed_for(self) -> float:
        """Seconds; 0 while it answers."""
        return 0.0 if self.fault is None else time.monotonic() - self._failed

    @property
    def silent(self) -> bool:
        return bool(self._asked) and time.monotonic() - self._heard > SILENT

    def post(self, command: messages.Command) -> None:
        """Pausing is impossible, hence ignored."""
        match command:
            case messages.Admit(rows):
                for spec in rows:
                    if (call := self.calls.get(spec.row_id)) is not None:
                        if not self._asked and not self._coming:
                            self._heard = time.monotonic()
                        self._asked[spec.row_id] = call
                        call.go(self)
                        self.slots.send(spec.row_id, call.request.client, streams=call.streams)
            case messages.Cancel(row_ids):
                for row_id in row_ids:
                    self._leave(row_id)
                    if (call := self.calls.get(row_id)) is not None:
                        call.leave()

    def reclaim(self) -> tuple[messages.Command, ...]:
        """Nothing: posts take effect at once."""
        return ()

    def begin(self, row: RowId, count: Callable[[], int], *, whole: bool = False) -> None:
        """First bytes; `count` returns tokens since its last call. Of a `whole` answer, `end` reports both."""
        self.slots.begin(row)
        self._asked.pop(row, None)
        if whole:
            return
        self._coming[row] = count
        self._report(RowUpdate(row, unnamed=count()), begun=(row,))
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(PERIOD, self._flush)

    def end(
        self, row: RowId, tokens: int, error: str | None = None, *, limited: bool = False, begun: bool = False
    ) -> None:
        """With the tokens not yet counted; `limited` by `max_tokens`; `begun` by this report."""
        ended = FinishReason.LENGTH if limited else FinishReason.STOP
        reason = ended if error is None else FinishReason.ERROR
        self._leave(row)
        self._report(RowUpdate(row, unnamed=tokens, finish_reason=reason, error=error), begun=(row,) * begun)

    def hear(self, waiting: int, running: int) -> None:
        """Metrics of its queue."""
        self.slots.hear(waiting, running)
        self._report()

    def note_end(self, row: RowId, *, finished: bool) -> None:
        """An unfinished stream may have been preempted, by what others report that ran alone."""
        overlapped = self.slots.is_cut(row)
        if finished or not overlapped:
            self._finishes = finished or bool(self._finishes)
        self.slots.cuts |= overlapped and not finished
        self.slots.cuts &= self._finishes is not False
        if self.slots.cuts and self._finishes and self.slots.learn(1):
            log.warning("%s breaks an answer off when the next call comes: it is sent one at a time", self.url)

    def hand_back(self, row: RowId, fault: str | None = None) -> None:
        """For a call without a byte sent to its client; a `fault` hands back all such calls."""
        self._leave(row)
        if fault is not None and self.fault is None:
            self.health.silent = True
            self.set_fault(fault)
        self._report(handed_back=(messages.HandedBack((row,), messages.Cause.FAULT),))

    def rest(self, fault: str, retry_after: str | None = None) -> None:
        if self.fault is None:
            self.health.rest(retry_after)
            self.set_fault(fault)

    def leave_silent(self) -> None:
        """Hand back all calls without a byte."""
        self.rest("is silent")
        for call in [*self._asked.values()]:
            call.leave()

    def set_fault(self, fault: str | None) -> None:
        """None for recovery; logged once a spell."""
        turns = (self.fault is None) is not (fault is None)
        if turns:
            self._failed = time.monotonic()
        if turns or self.fault != fault == NO_API:
            log.warning("backend %s %s", self.url, "is tried again" if fault is None else f"fails: {fault}")
        self.fault = fault
        self.answered |= fault is None
        self.deliver(messages.ExecutorHealth(self.index, fault))

    def _leave(self, row: RowId) -> None:
        self.slots.end(row)
        self._asked.pop(row, None)
        self._coming.pop(row, None)

    def _flush(self) -> None:
        updates = tuple(RowUpdate(row, unnamed=more) for row, count in self._coming.items() if (more := count()))
        if updates:
            self._report(*updates)
        self._due = asyncio.get_running_loop().call_later(PERIOD, self._flush) if self._coming else None

    def _report(self, *updates: RowUpdate, **more: Any) -> None:
        self._step += 1
        self._heard = time.monotonic() if updates else self._heard
        shape = messages.BatchShape(rows=len(self._coming))
        tally = messages.StepStats(generated=sum(one.tokens for one in updates))
        self.deliver(messages.StepReport(self.index, self._step, updates, shape, 0.0, tally=tally, **more))
