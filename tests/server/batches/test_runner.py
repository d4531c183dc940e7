"""Batches without HTTP: what breaks them off, when, and what is counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.batches.batch import BatchFolder, BatchRecord
from server.batches.files import NoSuchFile
from server.batches.lines import ResultFile
from server.batches.runner import Batches, LineReply

LINE = b'{"custom_id": "%d", "url": "/x", "body": {}}\n'


class Asker:
    """Answers each line at once, or never."""

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.asked = asyncio.Event()

    async def estimate(self, endpoint: str, body: bytes) -> float:
        return 1.0

    async def ask(self, endpoint: str, body: bytes, holder: str | None, request_id: str) -> LineReply | None:
        self.asked.set()
        if not self.answers:
            await asyncio.Event().wait()
        return LineReply(200, request_id, msgspec.Raw(b"{}"))


@asynccontextmanager
async def running(folder: Path, asker: Asker, slots: int = 2) -> AsyncIterator[Batches]:
    batches = Batches(folder, 10**6, asker, lambda: slots)
    batches.start()
    try:
        yield batches
    finally:
        await batches.stop()


async def begin(batches: Batches, lines: int) -> BatchRecord:
    with batches.files.draft() as (name, content):
        content.write(b"".join(LINE % place for place in range(lines)))
        content.flush()
        file = batches.files.keep(name, "in.jsonl", "batch", None)
    return await batches.create(file.id, "/x", None, {})


async def ended(record: BatchRecord) -> BatchRecord:
    async with asyncio.timeout(20):
        while record.under_way:
            await asyncio.sleep(0)
    return record


async def test_a_batch_that_is_about_to_end_is_cancelled_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, Asker()) as batches:
        publishes, go_on, publish = threading.Event(), threading.Event(), batches._publish

        def wait(record: BatchRecord) -> Any:
            publishes.set()
            go_on.wait(20)
            return publish(record)

        monkeypatch.setattr(batches, "_publish", wait)
        record = await begin(batches, lines=0)
        assert await asyncio.to_thread(publishes.wait, 20)
        cancelling = asyncio.create_task(batches.cancel(record.id))
        await asyncio.sleep(0)
        go_on.set()
        await cancelling
        assert (await ended(record)).status == "failed"


async def test_a_batch_is_cancelled_though_the_client_leaves_that_asks_for_it(tmp_path: Path) -> None:
    asker = Asker(answers=False)
    async with running(tmp_path, asker) as batches:
        record = await begin(batches, lines=2)
        await asker.asked.wait()
        leaving = asyncio.create_task(batches.cancel(record.id))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await ended(record)).status == "cancelled"


async def test_a_batch_waits_for_slots_that_come_back(tmp_path: Path) -> None:
    async with running(tmp_path, Asker(), slots=0) as batches:
        assert (await ended(await begin(batches, lines=3))).completed == 3


async def test_a_batch_that_was_being_cancelled_when_the_server_died_counts_its_answers(tmp_path: Path) -> None:
    asker = Asker(answers=False)
    async with running(tmp_path, asker) as batches:
        record = await begin(batches, lines=2)
        await asker.asked.wait()
        ResultFile(batches.files.path(record.output_file_id)).append(b'{"custom_id": "0"}\n')
    record.enter("cancelling")
    BatchFolder(tmp_path / "batches").save(record)
    async with running(tmp_path, asker) as batches:
        found = batches.find(record.id, None)
        assert found is not None
        after = await ended(found[0])
        assert (after.status, found[1].counts) == ("cancelled", (2, 1, 0))


async def test_drafts_take_room_and_leave_nothing_when_they_are_left(tmp_path: Path) -> None:
    async with running(tmp_path, Asker()) as batches:
        files = batches.files
        with files.draft() as (first, _), files.draft() as (second, _):
            assert files.take_room(first, 600_000) and not files.take_room(second, 600_000)
        assert files.room == 10**6
        with pytest.raises(NoSuchFile):  # a thread that comes to it after its client has gone
            files.keep(first, "in.jsonl", "batch", None)
        assert not [*(tmp_path / "files").iterdir()]
