"""Batches and the folder of their files, without HTTP: what breaks them off, when, and what is counted."""

import asyncio
import errno
import itertools
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.access import Quota, Share
from server.api.batches.asker import ModelAsker
from server.batches.batch import BatchRecord, LineReply, ResultLine, append, read_answered
from server.batches.batches import Batches, TooManyBatches
from server.batches.files import FileStore, NoSuchFile, RecordFolder, StoredFile, hold_folder
from server.front_settings import Admission

LINE = b'{"custom_id": "%d", "url": "/x", "body": {}}\n'


LONGEST = 1000


class Asker(ModelAsker):
    """Answers each line at once, or never."""

    def __init__(self, *, answers: bool = True, size: int = 0) -> None:
        self.answers = answers
        self.body = msgspec.Raw(b'"%s"' % (b"x" * size))
        self.asked = asyncio.Event()

    def enter(self, holder: str | None) -> Share | None:
        return Quota(Admission()).enter(holder or "", 0.0)

    def leave(self, share: Share) -> None:
        pass

    async def ask(self, record: BatchRecord, body: bytes, share: Share, request_id: str) -> LineReply:
        self.asked.set()
        if not self.answers:
            await asyncio.Event().wait()
        return LineReply(200, request_id, self.body)


@asynccontextmanager
async def running(folder: Path, asker: Asker, slots: int = 2) -> AsyncIterator[Batches]:
    batches = Batches(folder, 10**6, LONGEST, asker, lambda: slots)
    batches.start()
    try:
        yield batches
    finally:
        await batches.stop()


def put(batches: Batches, content: bytes, holder: str | None = None) -> str:
    """The name of a file that a client has sent."""
    with batches.files.draft(holder) as (name, file):
        file.write(content)
        file.flush()
        batches.files.keep(name, "in.jsonl", "batch")
    return name


async def begin(batches: Batches, lines: int = 0, holder: str | None = None) -> BatchRecord:
    content = b"".join(LINE % place for place in range(lines))
    return await batches.create(put(batches, content, holder), "/x", holder, {})


@asynccontextmanager
async def asked(folder: Path) -> AsyncIterator[tuple[Batches, BatchRecord]]:
    """A batch of which a line has been asked, and never will be answered."""
    asker = Asker(answers=False)
    async with running(folder, asker) as batches:
        record = await begin(batches, lines=2)
        await asker.asked.wait()
        yield batches, record


def found(batches: Batches, record: BatchRecord) -> BatchRecord:
    one = batches.find(record.id, None)
    assert one is not None
    return one


async def ended(record: BatchRecord) -> BatchRecord:
    while record.under_way:
        await asyncio.sleep(0)
    return record


async def test_a_batch_that_nearly_ended_is_not_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, Asker()) as batches:
        publishes, go_on, save = threading.Event(), threading.Event(), RecordFolder.save

        def wait(folder: RecordFolder[Any], name: str, record: BatchRecord | StoredFile) -> None:
            if isinstance(record, BatchRecord) and record.status == "failed":
                publishes.set()
                go_on.wait(20)
            save(folder, name, record)

        monkeypatch.setattr(RecordFolder, "save", wait)
        record = await begin(batches, lines=0)
        assert await asyncio.to_thread(publishes.wait, 20)
        cancelling = asyncio.create_task(batches.cancel(record.id))
        await asyncio.sleep(0)
        go_on.set()
        await cancelling
        assert (await ended(record)).status == "failed"


async def test_a_batch_is_cancelled_though_the_client_leaves_that_asks_for_it(tmp_path: Path) -> None:
    async with asked(tmp_path) as (batches, record):
        leaving = asyncio.create_task(batches.cancel(record.id))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await ended(record)).status == "cancelled"


async def test_a_batch_waits_for_slots_that_come_back(tmp_path: Path) -> None:
    async with running(tmp_path, Asker(), slots=0) as batches:
        assert (await ended(await begin(batches, lines=3))).completed == 3


async def test_a_batch_that_was_being_cancelled_when_the_server_died_counts_its_answers(tmp_path: Path) -> None:
    async with asked(tmp_path) as (batches, record):
        line = ResultLine("x", "0", None, None)
        append(batches.files.path(record.output_file_id), msgspec.json.encode(line) + b"\n")
    record.enter("cancelling")
    RecordFolder(tmp_path / "batches", BatchRecord).save(record.id, record)
    async with running(tmp_path, Asker(answers=False)) as batches:
        after = await ended(found(batches, record))
        assert (after.status, after.total, after.completed, after.failed) == ("cancelled", 2, 1, 0)


async def test_drafts_take_room_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One key that took all the room there is for files kept all others from sending any."""
    async with running(tmp_path, Asker()) as batches:
        files = batches.files
        with files.draft(None) as (first, _), files.draft(None) as (second, _):
            assert files.take_room(first, 600_000) and not files.take_room(second, 600_000)
        assert files.room_of(None) == 10**6
        with pytest.raises(NoSuchFile):  # a thread that comes to it after its client has gone
            files.keep(first, "in.jsonl", "batch")
        assert not [*(tmp_path / "files").iterdir()]
        with files.draft("mine") as (mine, _), files.draft("other") as (other, _):
            assert not files.take_room(mine, 500_001) and files.take_room(mine, 500_000)
            assert files.take_room(other, 500_000) and files.room_of("third") == 0
        monkeypatch.setattr("server.batches.files.MOST_FILES", 4)
        with files.draft("mine"), files.draft("mine"):
            assert not files.room_of("mine") and files.room_of("other")
        assert files.room_of("mine")


async def test_answers_wait_for_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were written until the disk was full."""
    monkeypatch.setattr("server.batches.batches.RETRY", 0.001)
    waits, may_answer = asyncio.Event(), FileStore.may_answer

    def look(files: FileStore, holder: str | None) -> bool:
        if not (may := may_answer(files, holder)):
            waits.set()
        return may

    monkeypatch.setattr(FileStore, "may_answer", look)
    async with running(tmp_path, Asker(size=400_000), slots=1) as batches:
        with batches.files.draft(None) as (large, _):
            assert batches.files.take_room(large, 900_000)
            record = await begin(batches, lines=5)
            await waits.wait()
            assert found(batches, record).completed == 3
        assert (await ended(record)).completed == 5
        assert not batches.files.room_of(None)


async def test_each_key_has_so_many_batches_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All were remembered that had not ended, however many."""
    monkeypatch.setattr("server.batches.batches.MOST_UNDER_WAY", 2)
    async with running(tmp_path, Asker(answers=False)) as batches:
        first, _ = [await begin(batches, lines=1) for _ in range(2)]
        with pytest.raises(TooManyBatches, match="2 batches are under way"):
            await begin(batches, lines=1)
        await batches.cancel(first.id)
        await ended(first)
        await begin(batches, lines=1)


async def test_batches_of_the_key_with_most_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.batches.batches.MOST_BATCHES", 3)
    async with running(tmp_path, Asker()) as batches:
        mine = await ended(await begin(batches, lines=1, holder="mine"))
        others = [await ended(await begin(batches, lines=1, holder="other")) for _ in range(3)]
        assert batches.find(mine.id, "mine") is not None
        assert [batches.find(one.id, "other") is None for one in others] == [True, False, False]


BOUNDED = {
    # A file of nothing else kept all batches waiting for as long as it took to read.
    "blank lines": (b"\n" * 10**6, "too_many_requests", None),
    # One of 100 MB was read into memory, and held the interpreter for a second.
    "a line": (LINE % 0 + LINE % 1 + LINE % 2 + b"x" * LONGEST + b"\n" + LINE % 4, "line_too_large", 4),
}


@pytest.mark.parametrize(("content", "code", "line"), BOUNDED.values(), ids=BOUNDED)
async def test_lines_have_bounds(tmp_path: Path, content: bytes, code: str, line: int | None) -> None:
    async with running(tmp_path, Asker()) as batches:
        record = await ended(await batches.create(put(batches, content), "/x", None, {}))
        (error,) = record.errors
        assert (record.status, error.code) == ("failed", code) and line in (None, error.line)


def full_disk(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_full_disk_makes_a_batch_wait_losing_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch failed, and stayed under way for ever where that could not be written either."""
    monkeypatch.setattr("server.batches.batches.RETRY", 0.001)
    writes, sync = itertools.count(), os.fsync
    async with running(tmp_path, Asker(), slots=1) as batches:
        record = await begin(batches, lines=3)
        monkeypatch.setattr(os, "fsync", lambda handle: (sync if next(writes) % 3 else full_disk)(handle))
        assert (await ended(record)).status == "completed"
        kept = batches.files.path(record.output_file_id).read_bytes()
    assert sorted(read_answered(batches.files.path(record.output_file_id))) == ["0", "1", "2"]
    assert kept.count(b"\n") == 3 and next(writes) >= 8


async def test_a_batch_begins_only_where_there_is_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, Asker()) as batches:
        name = put(batches, LINE % 0)
        monkeypatch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            await batches.create(name, "/x", None, {})
        assert not batches.all_of(None)
    assert not [*(tmp_path / "batches").iterdir()]


def test_a_folder_is_held_by_one_server_at_a_time(tmp_path: Path) -> None:
    """Below a cache folder that is read-only the server ended with a traceback."""
    folder = tmp_path / "batches" / "tiny"
    with hold_folder(folder) as first, hold_folder(folder) as second:
        assert (first, second) == (None, "is held by another server")
    with hold_folder(folder) as again:
        assert again is None
    (tmp_path / "file").touch()
    with hold_folder(tmp_path / "file" / "tiny") as obstacle:
        assert obstacle == "cannot be written: Not a directory"
