"""What watches over a server: its service manager, and who looks for loops and executors that stand still."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from engine.messages import BatchShape, ExecutorInfo, StepReport
from scheduler.clock import background
from server.process.loop_watchdog import watch_loop
from server.process.notify import Notifier, feed_watchdog
from server.process.watchdog import Watchdog


@dataclass
class Watched:
    """An executor whose beat the test gives."""

    info: ExecutorInfo
    alive: bool = True
    beat: int = 0


@dataclass
class Held:
    """The rows that executors hold, as a watchdog asks for them."""

    rows: dict[int, int]
    given_up: list[tuple[int, str]] = field(default_factory=list)
    alive: bool = True

    def held_by(self, executor: int) -> int:
        return self.rows[executor]

    def give_up(self, executor: int, error: str) -> None:
        self.given_up.append((executor, error))


def watched(count: int = 1, timeout: float = 10.0) -> tuple[list[Watched], Held, Watchdog]:
    executors = [Watched(ExecutorInfo(index, "cpu", 100, 4, 50)) for index in range(count)]
    held = Held(dict.fromkeys(range(count), 1))
    return executors, held, Watchdog(cast(Any, executors), cast(Any, held), timeout)


def looks(watchdog: Watchdog, count: int) -> None:
    for _ in range(count):
        watchdog.look(1.0)


def turn(seconds: float) -> StepReport:
    return StepReport(0, 1, (), BatchShape(), seconds)


def test_one_that_holds_requests_and_gives_no_sign_is_given_up_once() -> None:
    executors, held, watchdog = watched(2)
    for _ in range(30):
        executors[1].beat += 1
        watchdog.look(1.0)
    assert held.given_up == [(0, "it stands still: no sign of life for 10 s")]
    assert watchdog.responsive()


def test_one_that_has_nothing_to_do_may_be_silent() -> None:
    executors, held, watchdog = watched()
    held.rows[0] = 0
    looks(watchdog, 100)
    held.rows[0] = 1
    looks(watchdog, 9)
    assert held.given_up == []


def test_one_whose_turns_take_long_is_given_the_time_that_they_take() -> None:
    _, held, watchdog = watched()
    watchdog.receive(turn(20.0))
    looks(watchdog, 95)
    assert held.given_up == []
    looks(watchdog, 10)
    assert [executor for executor, _ in held.given_up] == [0]


def test_a_slow_turn_long_ago_no_longer_counts() -> None:
    _, held, watchdog = watched()
    for seconds in (1000.0, *[0.1] * 1000):
        watchdog.receive(turn(seconds))
    looks(watchdog, 11)
    assert len(held.given_up) == 1


def test_readiness_turns_at_half_of_what_is_allowed_and_back_with_the_next_sign() -> None:
    executors, held, watchdog = watched()
    looks(watchdog, 5)
    assert watchdog.responsive()
    looks(watchdog, 1)
    assert not watchdog.responsive()
    executors[0].beat += 1
    looks(watchdog, 1)
    assert watchdog.responsive()


def test_nobody_is_given_up_where_that_is_switched_off() -> None:
    executors, held, watchdog = watched(timeout=0.0)
    looks(watchdog, 10_000)
    assert held.given_up == [] and watchdog.responsive()


def test_a_process_that_was_stopped_for_an_hour_blames_nobody() -> None:
    """Silence is counted in looks, so an hour between two looks is one interval."""
    executors, held, watchdog = watched()
    looks(watchdog, 8)
    executors[0].beat += 1
    looks(watchdog, 1)
    assert held.given_up == []


def test_where_no_device_proves_itself_all_are_given_up_and_not_before() -> None:
    executors, held, watchdog = watched(2, timeout=0.0)
    held.rows = {0: 0, 1: 0}
    held.alive = False
    looks(watchdog, 14)
    held.alive = True
    looks(watchdog, 1)
    held.alive = False
    looks(watchdog, 14)
    assert not held.given_up
    looks(watchdog, 5)
    assert [executor for executor, _ in held.given_up] == [0, 1]
    assert "has not proved itself for 15 s" in held.given_up[0][1]


async def test_a_loop_without_a_sign_of_life_is_ended_once() -> None:
    ended = threading.Semaphore(0)
    async with watch_loop(ended.release, limit=0.05, interval=0.01):
        assert ended.acquire(timeout=20)  # blocks the loop
    assert not ended.acquire(blocking=False)


@pytest.mark.parametrize(("limit", "busy", "rest"), [(5.0, 0.03, 0.0), (0.5, 0.1, 0.02)])
async def test_a_loop_that_runs_is_left_in_peace(limit: float, busy: float, rest: float) -> None:
    """Callbacks take longer than the time between two signs of life, and more than a short limit only together."""
    ended = threading.Event()
    async with watch_loop(ended.set, limit=limit, interval=0.01):
        for _ in range(8):
            assert not ended.wait(busy)  # blocks the loop
            await asyncio.sleep(rest)
    assert not ended.is_set()


async def test_one_that_is_stopped_ends_nothing_and_does_not_wait_for_its_next_look() -> None:
    ended = threading.Event()
    async with watch_loop(ended.set, limit=60.0, interval=30.0):
        pass
    assert not ended.is_set()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        yield manager


def heard(manager: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(manager.recv(1000).decode())
        except BlockingIOError:
            return found


def test_it_hears_when_the_server_is_ready_and_when_it_stops(manager: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "PATH": "/bin"}
    notifier = Notifier(environ)
    notifier.ready("serving")
    notifier.stopping("draining")
    assert heard(manager) == ["READY=1\nSTATUS=serving", "STOPPING=1\nSTATUS=draining"]
    assert environ == {"PATH": "/bin"}


def test_an_abstract_name_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"lengthwise-test-{os.getpid()}"
        manager.bind("\0" + name)
        Notifier({"NOTIFY_SOCKET": "@" + name}).well()
        assert manager.recv(100) == b"WATCHDOG=1"


def test_without_a_manager_nothing_is_said() -> None:
    notifier = Notifier({})
    notifier.ready("serving")
    assert notifier.watchdog_interval is None


def test_a_manager_that_is_gone_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("serving")
    assert "READY=1" in caplog.text


@pytest.mark.parametrize(("pid", "interval"), [("", 3.0), ("own", 3.0), ("1", None)])
def test_the_watchdog_is_ours_only_when_it_is_set_for_us(pid: str, interval: float | None) -> None:
    pid = pid.replace("own", str(os.getpid()))
    environ = {"WATCHDOG_USEC": "9000000"} | ({"WATCHDOG_PID": pid} if pid else {})
    assert Notifier(environ).watchdog_interval == interval


async def test_the_watchdog_hears_that_all_is_well_only_while_it_is(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "3000"})
    asked = asyncio.Event()
    well = True

    def healthy() -> bool:
        asked.set()
        return well

    async with background(feed_watchdog(notifier, healthy), "watchdog"):
        await asked.wait()
        assert set(heard(manager)) == {"WATCHDOG=1"}
        well = False
        for _ in range(3):
            asked.clear()
            await asked.wait()
        assert heard(manager) in ([], ["WATCHDOG=1"])
