"""One fault at a time, at each place where one may come: it costs what it must, and leaves nothing behind.

A few of the places by default; with LENGTHWISE_TEST_FAULTS=K every K-th, as `make test-faults` does with 1.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine import health
from scheduler.journal import writer
from tests import tiny
from tests.faults.points import POINTS, Fault
from tests.faults.scenario import CALLS, Answer, Server, config_of, serve, what_is_open

EVERY = int(os.environ.get("LENGTHWISE_TEST_FAULTS", 0))
FEW = {"step": (13,), "allocation": (5, 60), "write and fsync": (0,), "send": (30,), "thread start": (0, 5)}
STRATEGIES = ("baton-pd", "so")
"""Rows that join a running batch and make way for better ones; batches that are handed back after each slice."""
PATIENCE = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("models") / "tiny", context=1024)


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Answer]:
    """The answers that come when each call is the only one."""

    async def ask() -> list[Answer]:
        async with serve(config_of(folder, "baton-pd", tmp_path_factory.mktemp("journal") / "alone")) as server:
            return [await server.ask(call) for call in CALLS]

    answers = asyncio.run(ask())
    assert all((answer is None) == call.leaves for answer, call in zip(answers, CALLS, strict=True))
    return answers


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause is longer than a few milliseconds."""
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE", "FIRST_REST", "LONGEST_REST"):
        monkeypatch.setattr(health, name, 0.005)
    monkeypatch.setattr(writer, "RETRY", 0.005)


async def assert_settled(server: Server) -> None:
    """Nothing is under way any more, and all that says so says so."""
    async with asyncio.timeout(PATIENCE):
        while await server.gauges():
            await asyncio.sleep(0)
    assert server.service.dispatcher.table.requests_waiting == server.service.dispatcher.table.requests_running == 0


def lost(found: Sequence[Answer], alone: Sequence[Answer]) -> int:
    """Calls that ended with an error; every other answer is what it is alone."""
    for call, answer, expected in zip(CALLS, found, alone, strict=True):
        assert answer in (expected, None), f"{call} answered {answer} instead of {expected}"
    return sum(answer != expected for answer, expected in zip(found, alone, strict=True))


async def put_in(fault: Fault, folder: Path, strategy: str, journal: Path, alone: Sequence[Answer]) -> None:
    """Serve all calls with a fault, and see what it cost."""
    async with serve(config_of(folder, strategy, journal)) as server:
        with fault.in_place():
            fault.armed = True
            found = await server.ask_all()
            await assert_settled(server)
            fault.armed = False
        assert lost(found, alone) <= (fault.point.lost_calls if fault.met else 0)
        status, _ = await server.get("/health/ready")
        assert (status, await server.sum_of("lengthwise:executor_up")) == (200, 2)
        assert await server.ask(CALLS[10]) == await server.ask(CALLS[10]) == alone[10]
        async with asyncio.timeout(PATIENCE):
            while await server.sum_of("lengthwise:journal_written_total") < len(CALLS) - fault.point.lost_calls:
                await asyncio.sleep(0)
        assert await server.sum_of("lengthwise:journal_lost_total") == 0


@pytest.mark.timeout(3600 if EVERY else 120)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", POINTS)
async def test_a_fault_costs_what_it_must_and_leaves_nothing_behind(
    name: str, strategy: str, folder: Path, alone: Sequence[Answer], tmp_path: Path
) -> None:
    point, before, n, met = POINTS[name], what_is_open(), 0, 0
    for n in range(0, 10_000, EVERY) if EVERY else FEW[name]:
        fault = Fault(point, n)
        await put_in(fault, folder, strategy, tmp_path / f"{n}.sqlite3", alone)
        assert what_is_open() == before, f"after fault {n}"
        if not fault.met:
            break
        met += 1
    assert met, "none of these faults was met"


async def test_of_two_executors_the_one_that_fails_for_good_answers_no_call_once_that_is_known(
    folder: Path, alone: Sequence[Answer], tmp_path: Path
) -> None:
    """Half of all later calls got an error, and health said that all was well."""
    fault = Fault(POINTS["step"], 0, times=10**9)
    async with serve(config_of(folder, "baton-pd", tmp_path / "journal")) as server:
        with fault.in_place():
            fault.armed = True
            assert 0 < lost(await server.ask_all(), alone) <= 3 * fault.point.lost_calls
            await assert_settled(server)
            assert await server.sum_of("lengthwise:executor_up") == 1
            assert lost(await server.ask_all(), alone) == 0
            assert (await server.get("/health/ready"))[0] == 200
        async with asyncio.timeout(PATIENCE):
            while await server.sum_of("lengthwise:executor_up") < 2:
                await asyncio.sleep(0)
        assert lost(await server.ask_all(), alone) == 0


@pytest.mark.parametrize("name", ["step", "allocation"])
async def test_where_every_executor_fails_readiness_says_so_and_the_process_is_to_end(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(replace(POINTS[name], anywhere=True), 0, times=10**9)
    monkeypatch.setattr("server.process.watchdog.RECOVERY", 1.0)
    async with serve(config_of(folder, "baton-pd", tmp_path / "journal")) as server:
        with fault.in_place():
            fault.armed = True
            assert set(await server.ask_all()) == {None}
            status, text = await server.get("/health/ready")
            assert status == 503 and "no_executor" in text
            await asyncio.wait_for(server.service.dispatcher.death(), PATIENCE)
