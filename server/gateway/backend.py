"""A server of others as the scheduler sees it: an executor that takes calls, and reports how their answers go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from engine.messages import (
    Admit,
    BatchShape,
    Cancel,
    Cause,
    Command,
    Deliver,
    ExecutorHealth,
    ExecutorInfo,
    FinishReason,
    HandedBack,
    RowId,
    RowUpdate,
    StepReport,
    Tally,
)
from server.gateway.slots import Slots

log = logging.getLogger(__name__)

ROOM = 10**9
"""Tokens of one call, and of K and V where the backend does not tell: it knows its own bounds."""

PERIOD = 0.25
"""Seconds between two reports of tokens; first tokens and ends are reported at once."""


class Waiting(Protocol):
    """A call that waits until a backend has room for it."""

    @property
    def streams(self) -> bool:
        """Whether the first byte of its answer comes long before the last."""

    @property
    def client(self) -> str:
        """Who is served by it."""

    def go(self, backend: Backend) -> None:
        """Send it to this backend."""

    def leave(self) -> None:
        """Break it off wherever it is."""


@dataclass(eq=False, slots=True)
class Backend:
    """A port of the dispatcher. Event loop only; no method waits or raises."""

    index: int
    url: str
    """Of its API, as http://127.0.0.1:8001/v1."""
    deliver: Deliver
    slots: Slots
    calls: dict[RowId, Waiting]
    """All calls of the gateway that are under way, by their rows."""
    key: str | None = None
    """What it is sent as a bearer token; None for what the client sends."""
    alive: bool = True
    fault: str | None = None
    """Why it does not answer; None while it does."""
    salts: bool = False
    """Whether it is an engine that keeps prompts apart by the `cache_salt` of a body."""
    merges: bool = True
    """Whether whole answers can be made of its streams; false once one could not."""
    merges_tools: bool = True
    """Whether those that call tools can."""
    tells: bool = False
    """Whether its metrics say how many calls wait there."""
    room: int = ROOM
    """Tokens of K and V that it holds."""
    _coming: dict[RowId, Callable[[], int]] = field(default_factory=dict)
    """Rows whose answers have begun, and what counts their tokens since it was asked last."""
    _cut: bool = False
    _finishes: bool = False
    _step: int = 0
    _due: asyncio.TimerHandle | None = None

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(self.index, self.url, self.room, self.slots.most, ROOM)

    def post(self, command: Command) -> None:
        """Let admitted calls go, and break cancelled ones off; nothing here can be paused."""
        match command:
            case Admit(rows):
                for spec in rows:
                    if (call := self.calls.get(spec.row_id)) is not None:
                        call.go(self)
                        self.slots.send(spec.row_id, call.client, streams=call.streams)
            case Cancel(row_ids):
                for row_id in row_ids:
                    self._leave(row_id)
                    if (call := self.calls.get(row_id)) is not None:
                        call.leave()

    def withdraw(self) -> tuple[Command, ...]:
        """Take back nothing: what was posted was done at once."""
        return ()

    def begin(self, row: RowId, count: Callable[[], int]) -> None:
        """The first bytes of an answer have come; `count` counts its tokens since it was called last."""
        self.slots.begin(row)
        self._coming[row] = count
        self._report((RowUpdate(row, unnamed=count()),), (row,))
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(PERIOD, self._flush)

    def end(self, row: RowId, tokens: int, error: str | None = None) -> None:
        """An answer is over, with so many tokens that have not been counted."""
        reason = FinishReason.STOP if error is None else FinishReason.ERROR
        self._leave(row)
        self._report((RowUpdate(row, unnamed=tokens, finish_reason=reason, error=error),))

    def hear(self, waiting: int, running: int) -> None:
        """The backend tells how many of its calls wait and run."""
        self.slots.hear(waiting, running)
        self._report()

    def note_end(self, row: RowId, *, finished: bool) -> None:
        """A stream ends in order; one that is not `finished` may have made way for the next call.

        That is certain where other streams say how they ended, and several were never seen at once.
        """
        self._finishes |= finished
        self._cut |= not finished and self.slots.is_cut(row)
        if self._cut and self._finishes and self.slots.most > 1:
            log.warning("%s breaks an answer off when the next call comes: it is sent one at a time", self.url)
            self.slots.learn(1)

    def hand_back(self, row: RowId, fault: str) -> None:
        """The backend fails, and a call of which nothing was sent to its client shall go elsewhere."""
        self._leave(row)
        self.set_fault(fault)
        self._report(handed_back=(HandedBack((row,), Cause.FAULT),))

    def set_fault(self, fault: str | None) -> None:
        """The backend does not answer, for this reason, or with None does so again; logged once a spell."""
        if (self.fault is None) is not (fault is None):
            log.warning("backend %s %s", self.url, "answers again" if fault is None else f"fails: {fault}")
        self.fault = fault
        self.deliver(ExecutorHealth(self.index, fault))

    def _leave(self, row: RowId) -> None:
        self.slots.end(row)
        self._coming.pop(row, None)

    def _flush(self) -> None:
        updates = tuple(RowUpdate(row, unnamed=more) for row, count in self._coming.items() if (more := count()))
        if updates:
            self._report(updates)
        self._due = asyncio.get_running_loop().call_later(PERIOD, self._flush) if self._coming else None

    def _report(
        self,
        updates: tuple[RowUpdate, ...] = (),
        begun: tuple[RowId, ...] = (),
        handed_back: tuple[HandedBack, ...] = (),
    ) -> None:
        self._step += 1
        shape, tally = BatchShape(rows=len(self._coming)), Tally(generated=sum(one.tokens for one in updates))
        self.deliver(
            StepReport(self.index, self._step, updates, shape, 0.0, begun=begun, handed_back=handed_back, tally=tally)
        )
