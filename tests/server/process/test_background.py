"""Work in the background that fails: what relies on it ends, the process with it."""

import asyncio
import logging
import subprocess
import sys
from contextlib import suppress

import pytest

from scheduler.clock import WorkFailed, background
from tests.server.process.test_life import ROOT

PROGRAM = """
import sys
import server.composition.gateway as composition
from server.config import GatewayConfig
from server.process.life import serve

async def fail(*_):
    {end}

composition.{work} = fail
config = GatewayConfig(backend=("http://127.0.0.1:9/v1",), port=0, no_journal=True)
sys.exit(serve(config, lambda _: None, composition.open_gateway))
"""


FAULTS = [
    ("watch_backends", "raise ValueError('5,000 digits')", "backends"),
    ("watch_lag", "import asyncio; raise asyncio.CancelledError", "loop lag"),
]


@pytest.mark.parametrize(("work", "end", "name"), FAULTS)
def test_a_process_whose_work_in_the_background_fails_ends_with_70(work: str, end: str, name: str) -> None:
    """The watcher of backends died of a label of 5,000 digits without a word, and no backend ever came back."""
    command = (sys.executable, "-c", PROGRAM.format(work=work, end=end))
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 70, ended.stderr
    assert f"the {name} failed" in ended.stderr and ("5,000 digits" in ended.stderr) == (work == "watch_backends")


async def fail_at(event: asyncio.Event) -> None:
    await event.wait()
    raise ValueError("it ends")


async def test_a_context_is_left_when_its_work_fails_and_its_task_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    event = asyncio.Event()
    with pytest.raises(WorkFailed, match="inner"):
        async with background(asyncio.Event().wait(), "outer"), background(fail_at(event), "inner"):  # type: ignore[arg-type]
            event.set()
            await asyncio.sleep(60)
    assert "inner failed" in caplog.text and "it ends" in caplog.text
    await asyncio.sleep(0)  # not cancelled any more


async def test_work_that_fails_as_it_is_stopped_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("at the end")

    with caplog.at_level(logging.ERROR):
        async with background(work(), "work"):
            await asyncio.sleep(0)
    assert "at the end" in caplog.text


async def test_work_that_has_nothing_to_do_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    async with background(asyncio.sleep(0), "nothing"):
        await asyncio.sleep(0.01)
    assert caplog.text == ""


async def test_a_context_that_swallows_its_cancellation_ends_all_the_same() -> None:
    event = asyncio.Event()
    event.set()
    with pytest.raises(WorkFailed):
        async with background(fail_at(event), "work"):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
