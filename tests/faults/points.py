"""The places at which a fault is put in: the n-th time that the program comes by there, an error is raised instead."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from aiohttp import web

from engine.forward.prefill import Prefill
from engine.kv import arena
from engine.kv.arena import KvArena
from engine.kv.device_blocks import DeviceBlocks
from engine.sampling import sampler
from models.network.loader import LoadedModel
from scheduler.journal import writer

BROKEN = "executor-0"
"""The thread of the one executor, of two, whose steps and allocations fail."""


@dataclass
class Fault:
    """Fails the n-th call of any of its point's functions, counted from 0, and the next `times - 1`."""

    point: Point
    n: int
    times: int = 1
    calls: int = 0
    armed: bool = False

    @property
    def met(self) -> bool:
        """Whether anything has failed."""
        return self.calls > self.n

    def pass_by(self, *given: object) -> None:
        """Count a call, or fail it."""
        if not self.armed or not (self.point.anywhere or threading.current_thread().name == BROKEN):
            return
        self.calls += 1
        if self.n < self.calls <= self.n + self.times:
            raise self.point.error(*given)

    @contextmanager
    def in_place(self) -> Iterator[Fault]:
        """Let calls come by here until the context is left."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in self.point.functions:
                patch.setattr(owner, name, self._checked(getattr(owner, name)))
            yield self

    def _checked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.pass_by(*given)
            return function(*given, **named)

        return call


@dataclass(frozen=True)
class Point:
    """Functions that can fail in one way, and what that may cost."""

    functions: Sequence[tuple[object, str]]
    error: Callable[..., Exception]
    """Makes the error, from what the function was given."""
    anywhere: bool = False
    """Whether every thread comes by there, else that of one executor."""
    lost_calls: int = 0
    """Calls that one such failure may end with an error."""


def _cut(response: web.StreamResponse, request: object = None, *_: object) -> Exception:
    """Break the connection that a response goes out by."""
    given = request if isinstance(request, web.BaseRequest) else response._req
    if given is not None and given.transport is not None:
        given.transport.abort()
    return ConnectionResetError("Cannot write to closing transport")


ROWS = 3
"""Rows of an executor's batch."""

ALLOCATING: Sequence[tuple[object, str]] = (
    *((LoadedModel, "forward"), (Prefill, "__init__"), (DeviceBlocks, "make"), (sampler, "Chosen")),
    *((KvArena, "insert"), (KvArena, "reshape"), (arena, "to_host")),
)

POINTS: Mapping[str, Point] = MappingProxyType(
    {
        "step": Point([(LoadedModel, "forward")], lambda *_: RuntimeError("the device is on fire"), lost_calls=4),
        "allocation": Point(ALLOCATING, lambda *_: torch.OutOfMemoryError("CUDA out of memory (injected)")),
        # What SQLite says when a write or an fsync fails: the transaction is rolled back.
        "write and fsync": Point(
            [(writer, "append"), (writer, "connect")],
            lambda *_: sqlite3.OperationalError("disk I/O error"),
            anywhere=True,
        ),
        "send": Point(
            [(web.StreamResponse, "write"), (web.Response, "write_eof"), (web.StreamResponse, "prepare")],
            _cut,
            anywhere=True,
            lost_calls=1,
        ),
        "thread start": Point(
            [(threading.Thread, "start")],
            lambda *_: RuntimeError("can't start new thread"),
            anywhere=True,
            lost_calls=1,
        ),
    }
)
