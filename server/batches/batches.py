"""Runs batches at the lowest priority; each answer is stored at once, so that a restart asks only for missing ones."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web

from models.files import is_disk_full
from server.access import Share
from server.batches import batch as stored
from server.batches.files import FileStore, RecordFolder, new_file_id
from server.line_ends import escape_line_ends

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_BATCHES = 1000  # remembered; the oldest ended go first

MOST_UNDER_WAY = 100  # of a key

LINES_PER_SLOT = 2  # lines asked for at a time, by slots: one runs, one is ready

RETRY = 1.0  # seconds until a line is retried for lack of queue, quota or disk


class TooManyBatches(Exception):
    """Of a key, or in all."""


@dataclass(eq=False, slots=True)
class Batch:
    """As this process knows it; the record counts lines."""

    record: stored.BatchRecord
    ending: bool = False  # only files are left to make: too late to cancel
    task: asyncio.Task[None] | None = None


class Batches:
    """Event loop only."""

    def __init__(
        self, folder: Path, capacity: int, longest: int, asker: stored.Asker, slots: Callable[[], int]
    ) -> None:
        """`capacity` of all files and `longest` line in bytes. Raises OSError."""
        self.files = FileStore(folder / "files", capacity)
        self._folder = RecordFolder(folder / "batches", stored.BatchRecord)
        self._longest, self._asker, self._slots = longest, asker, slots
        self._disk = ThreadPoolExecutor(1, "batches")  # one thread keeps the order of writes
        records = sorted(self._folder.load(), key=lambda record: (record.created_at, record.id))
        self._batches = {record.id: Batch(record) for record in records}

    def start(self) -> None:
        """Resume what an earlier server left."""
        self._free = asyncio.Semaphore(max(1, LINES_PER_SLOT * self._slots()))  # further lines that may be asked for
        open_ = [batch for batch in self._batches.values() if batch.record.under_way]
        self.files.remove_rests({name: one.record.holder for one in open_ for name in one.record.result_ids})
        for batch in open_:
            batch.task = asyncio.create_task(self._run(batch), name=batch.record.id)

    async def stop(self) -> None:
        tasks = [batch.task for batch in self._batches.values() if batch.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._disk.shutdown)  # finishes writing

    async def create(
        self, input_file_id: str, endpoint: str, holder: str | None, metadata: Mapping[str, str]
    ) -> stored.BatchRecord:
        """Raises NoSuchFile and TooManyBatches."""
        self.files.find(input_file_id, holder)
        self._check_room(holder)
        record = stored.BatchRecord(
            id=f"batch_{secrets.token_hex(12)}",
            holder=holder,
            endpoint=endpoint,
            input_file_id=input_file_id,
            output_file_id=new_file_id(),
            error_file_id=new_file_id(),
            created_at=int(time.time()),
            metadata=dict(metadata),
        )
        await asyncio.shield(self._begin(record))  # or a client that leaves would start it at the next restart
        return record

    def find(self, name: str, holder: str | None) -> stored.BatchRecord | None:
        """The key's own; None without it."""
        batch = self._batches.get(name)
        return None if batch is None or batch.record.holder != holder else batch.record

    def all_of(self, holder: str | None) -> list[stored.BatchRecord]:
        """The key's, latest first."""
        return [one.record for one in self._batches.values() if one.record.holder == holder][::-1]

    async def cancel(self, name: str) -> None:
        """Answers so far stay."""
        batch = self._batches[name]
        if batch.task is not None and not batch.ending and batch.record.status != "cancelling":
            batch.record.enter("cancelling")
            batch.task.cancel()  # at once, while it and the client exist
            await self._on_disk(self._folder.save, name, batch.record)

    def uses(self, file_id: str) -> bool:
        return any(one.record.under_way and one.record.input_file_id == file_id for one in self._batches.values())

    def _check_room(self, holder: str | None) -> None:
        holders = [one.record.holder for one in self._batches.values() if one.record.under_way]
        for count, most in ((holders.count(holder), MOST_UNDER_WAY), (len(holders), MOST_BATCHES)):
            if count >= most:
                raise TooManyBatches(f"{count} batches are under way, as many as may be; try again later")

    async def _begin(self, record: stored.BatchRecord) -> None:
        self._batches[record.id] = batch = Batch(record)  # it counts from now on
        try:
            await self._on_disk(self._folder.save, record.id, record)
        except OSError:
            del self._batches[record.id]
            raise
        await self._forget_oldest()
        batch.task = asyncio.create_task(self._run(batch), name=record.id)

    async def _forget_oldest(self) -> None:
        if len(self._batches) <= MOST_BATCHES:
            return
        ended = [one.record for one in self._batches.values() if not one.record.under_way]
        held = Counter(record.holder for record in ended)
        oldest = max(ended, key=lambda record: held[record.holder])  # first of equals
        del self._batches[oldest.id]
        await self._on_disk(self._folder.remove, oldest.id)

    async def _run(self, batch: Batch) -> None:
        record = batch.record
        last: stored.BatchStatus = "cancelled" if record.status == "cancelling" else "completed"
        try:
            if record.status in ("validating", "in_progress"):
                last = await self._answer_all(record)
        except asyncio.CancelledError:
            if record.status != "cancelling":
                raise  # the server ends
            if batch.task is not None:
                batch.task.uncancel()
            last = "cancelled"
        except Exception:
            log.exception("%s failed", record.id)
            record.errors = [stored.LineError("internal_error", "the server failed; its log tells more")]
            last = "failed"
        batch.ending = True
        try:
            await self._finish(record, last)
        except OSError:
            log.exception("%s has ended, but its files cannot be written: the next server tries again", record.id)

    async def _answer_all(self, record: stored.BatchRecord) -> stored.BatchStatus:
        """Ask for every missing line until the window closes; returns the final status."""
        path, places = self.files.path(record.input_file_id), list[stored.Place]()
        try:
            places, record.errors = await self._on_disk(stored.find_lines, path, record.endpoint, self._longest)
        except OSError:
            record.errors = [stored.LineError("file_missing", f"{record.input_file_id} is not here any more")]
        if record.errors:
            return "failed"
        record.total = len(places)
        todo = await self._find_unanswered(record, places)
        if record.status == "validating":
            record.enter("in_progress")
            await self._write(self._folder.save, record.id, record)
        try:
            async with asyncio.timeout(record.expires_at - time.time()), asyncio.TaskGroup() as group:
                for place in todo:
                    share = await self._take_slot(record.holder)
                    task = group.create_task(self._answer(record, place, share))
                    task.add_done_callback(partial(self._free_slot, share))
        except TimeoutError:
            late = stored.LineError("batch_expired", "this request was not served before the completion window ended")
            unanswered = await self._find_unanswered(record, places)
            lines = [stored.ResultLine(_request_id(record, one), one.custom_id, None, late) for one in unanswered]
            await self._append(record, lines, fine=False)
            return "expired"
        return "completed"

    async def _find_unanswered(self, record: stored.BatchRecord, places: Sequence[stored.Place]) -> list[stored.Place]:
        paths = map(self.files.path, record.result_ids)
        output, error = [await self._on_disk(stored.read_answered, path) for path in paths]
        record.completed, record.failed = len(output), len(error)
        return [place for place in places if place.custom_id not in output | error]

    async def _take_slot(self, holder: str | None) -> Share:
        while True:
            await self._free.acquire()
            share = self._asker.enter(holder) if self.files.may_answer(holder) else None
            if share is not None:
                return share
            self._free.release()
            await asyncio.sleep(RETRY)

    def _free_slot(self, share: Share, _: object) -> None:
        self._asker.leave(share)
        self._free.release()

    async def _answer(self, record: stored.BatchRecord, place: stored.Place, share: Share) -> None:
        body, name = await self._on_disk(place.read, self.files.path(record.input_file_id)), _request_id(record, place)
        while (reply := await self._asker.ask(record, body, share, name)) is None:
            await asyncio.sleep(RETRY)
        fine = reply.status_code == 200
        await self._append(record, [stored.ResultLine(name, place.custom_id, reply, None)], fine=fine)

    async def _append(self, record: stored.BatchRecord, lines: Sequence[stored.ResultLine], *, fine: bool) -> None:
        name = record.result_ids[not fine]
        written = escape_line_ends(msgspec.json.Encoder().encode_lines(lines))
        await self._write(self._append_now, name, record.holder, written)
        record.completed += fine * len(lines)
        record.failed += (not fine) * len(lines)

    def _append_now(self, name: str, holder: str | None, written: bytes) -> None:
        stored.append(self.files.path(name), written)
        self.files.note_answers(name, holder, len(written))

    async def _finish(self, record: stored.BatchRecord, last: stored.BatchStatus) -> None:
        if last == "completed":
            record.enter("finalizing")
        await self._find_unanswered(record, ())
        await self._write(self._publish, record)
        record.enter(last)
        await self._write(self._folder.save, record.id, record)

    def _publish(self, record: stored.BatchRecord) -> None:
        for name, kind in zip(record.result_ids, ("output", "error"), strict=True):
            if self.files.path(name).exists() and not self.files.has(name):
                self.files.add(name, f"{record.id}_{kind}.jsonl", "batch_output", record.holder)

    async def _on_disk(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work, *arguments)

    async def _write(self, work: Callable[..., T], *arguments: object) -> T:
        """Retry while the disk is full."""
        told = False
        while True:
            try:
                # an answer counts, even if the batch is cancelled meanwhile
                return await asyncio.shield(self._on_disk(work, *arguments))
            except OSError as error:
                if not is_disk_full(error):
                    raise
                if not told:
                    log.error("batches wait until there is room for what they write: %s", error)
                    told = True
                await asyncio.sleep(RETRY)


def _request_id(record: stored.BatchRecord, place: stored.Place) -> str:
    return f"{record.id.replace('batch_', 'batch_req_', 1)}_{place.offset}"


BATCHES = web.AppKey("batches", Batches)


async def start_batches(app: web.Application) -> None:
    if BATCHES in app:
        app[BATCHES].start()


async def stop_batches(app: web.Application) -> None:
    """Let the server end; the next one resumes."""
    if BATCHES in app:
        await app[BATCHES].stop()
