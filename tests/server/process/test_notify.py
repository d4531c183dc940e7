"""Messages to a service manager, on a socket that the test listens to."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.clock import background
from server.process.watchdog import Notifier, feed_watchdog


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


@pytest.mark.parametrize(
    ("pid", "interval"), [(None, 3.0), (str(os.getpid()), 3.0), ("1", None)], ids=["anybody", "us", "another"]
)
def test_the_watchdog_is_ours_only_when_it_is_set_for_us(pid: str | None, interval: float | None) -> None:
    environ = {"WATCHDOG_USEC": "9000000"} | ({} if pid is None else {"WATCHDOG_PID": pid})
    assert Notifier(environ).watchdog_interval == interval


async def test_the_watchdog_hears_that_all_is_well_only_while_it_is(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "3000"})
    asked = asyncio.Event()
    well = True

    def healthy() -> bool:
        asked.set()
        return well

    async with background(feed_watchdog(notifier, healthy), "watchdog"):
        await asyncio.wait_for(asked.wait(), 20)
        assert set(heard(manager)) == {"WATCHDOG=1"}
        well = False
        for _ in range(3):
            asked.clear()
            await asyncio.wait_for(asked.wait(), 20)
        assert heard(manager) in ([], ["WATCHDOG=1"])
