"""Batches under way: lines of their inputs become requests below all others, and answers go to the disk one by one.

Twice as many requests are with the dispatcher as there are slots, so that it has the next ones at hand when a slot that
nobody else wants is free. A server that goes on from an earlier one's files asks only for what has no answer yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from server.batches.asking import Asker, ResultLine
from server.batches.batch import BatchFolder, BatchRecord, BatchStatus, LineError, Progress, new_batch_id
from server.batches.expected_end import ExpectedEnd
from server.batches.files import FileStore, NoSuchFile, new_file_id
from server.batches.lines import BadInput, Place, ResultFile, find_lines
from server.batches.order import LongestFirst
from server.http.quota import Share

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_BATCHES = 1000
"""Batches that are remembered; of those that have ended, the oldest go first."""

MOST_UNDER_WAY = 100
"""Batches of a key that may be under way."""

LINES_PER_SLOT = 2
"""Lines that are asked for at a time: a slot would be empty until the last answer is on the disk and the next line's
prompt has been read, were none waiting."""

RETRY = 1.0
"""Seconds after which a line is asked for again that there was no room for, in the queue or in its key's quota."""


class TooManyBatches(Exception):
    """A key has as many batches under way as it may, or all keys together."""


@dataclass(slots=True)
class _Running:
    record: BatchRecord
    progress: Progress
    task: asyncio.Task[None] | None = None
    ending: bool = False
    """Whether only its files are left to be made, so that it cannot be cancelled any more."""


class Batches:
    """All batches of a server. Event loop only."""

    def __init__(self, folder: Path, capacity: int, longest: int, asker: Asker, slots: Callable[[], int]) -> None:
        """`capacity` in bytes of all files, `longest` in those of a line. Raises OSError."""
        self.files = FileStore(folder / "files", capacity)
        self._folder = BatchFolder(folder / "batches")
        self._longest = longest
        self._asker = asker
        self._slots = slots
        self._disk = ThreadPoolExecutor(1, "batches")
        self._running = {
            record.id: _Running(record, Progress(record.total, record.completed, record.failed))
            for record in self._folder.load()
        }
        self._out = 0  # requests with the dispatcher, of all batches
        self._room = asyncio.Event()
        self._stopped = False

    def start(self) -> None:
        """Go on with what an earlier server left."""
        open_ = [one for one in self._running.values() if one.record.under_way]
        records = [one.record for one in open_]
        made = ((name, record.holder) for record in records for name in (record.output_file_id, record.error_file_id))
        self.files.remove_rests(dict(made))
        for one in open_:
            self._launch(one)

    async def stop(self) -> None:
        """Break off; what has no answer yet is asked for by the next server."""
        tasks = [one.task for one in self._running.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._stopped:  # at the drain, or else at the end
            self._stopped = True
            await self._on_disk(int)  # what is being written is done then
            self._disk.shutdown()

    async def create(
        self, input_file_id: str, endpoint: str, holder: str | None, metadata: Mapping[str, str]
    ) -> BatchRecord:
        """Begin a batch. Raises NoSuchFile and TooManyBatches."""
        self.files.find(input_file_id, holder)
        self._check_room(holder)
        record = BatchRecord(
            id=new_batch_id(),
            holder=holder,
            endpoint=endpoint,
            input_file_id=input_file_id,
            output_file_id=new_file_id(),
            error_file_id=new_file_id(),
            created_at=int(time.time()),
            metadata=dict(metadata),
        )
        await asyncio.shield(self._begin(record))  # or a client that leaves would have one that the next server begins
        return record

    def _check_room(self, holder: str | None) -> None:
        """Raise TooManyBatches."""
        holders = [one.record.holder for one in self._running.values() if one.record.under_way]
        for count, most in ((holders.count(holder), MOST_UNDER_WAY), (len(holders), MOST_BATCHES)):
            if count >= most:
                raise TooManyBatches(f"{count} batches are under way, as many as may be; try again later")

    async def _begin(self, record: BatchRecord) -> None:
        self._running[record.id] = one = _Running(record, Progress())  # it counts from now on
        try:
            await self._save(record)
        except OSError:
            del self._running[record.id]
            raise
        await self._forget_oldest()
        self._launch(one)

    async def _forget_oldest(self) -> None:
        """Where too many are remembered, forget a batch that has ended: the oldest of the key that has most of them."""
        if len(self._running) <= MOST_BATCHES:
            return
        ended = [one.record for one in self._running.values() if not one.record.under_way]
        held = Counter(record.holder for record in ended)
        oldest = max(ended, key=lambda record: held[record.holder])  # the first of several
        del self._running[oldest.id]
        await self._on_disk(self._folder.remove, oldest.id)

    def find(self, name: str, holder: str | None) -> tuple[BatchRecord, Progress] | None:
        """A batch of this key's; None where there is none."""
        one = self._running.get(name)
        return None if one is None or one.record.holder != holder else (one.record, one.progress)

    def all_of(self, holder: str | None) -> list[tuple[BatchRecord, Progress]]:
        """The batches of a key, the latest first."""
        own = [(one.record, one.progress) for one in self._running.values() if one.record.holder == holder]
        return own[::-1]

    async def cancel(self, name: str) -> None:
        """Break a batch off for good; what has an answer keeps it."""
        one = self._running[name]
        if one.task is not None and not one.ending and one.record.status != "cancelling":
            one.record.enter("cancelling")
            one.task.cancel()  # at once: later, the batch may have ended, or the client that asks may be gone
            await self._save(one.record)

    def uses(self, file_id: str) -> bool:
        """Whether a batch under way reads a file."""
        return any(one.record.under_way and one.record.input_file_id == file_id for one in self._running.values())

    def _launch(self, one: _Running) -> None:
        one.task = asyncio.create_task(self._run(one), name=one.record.id)

    async def _run(self, one: _Running) -> None:
        record = one.record
        last: BatchStatus = "cancelled" if record.status == "cancelling" else "completed"
        try:
            if record.status in ("validating", "in_progress"):
                last = await self._work(one)
        except asyncio.CancelledError:
            if record.status != "cancelling":
                raise  # the server ends
            if one.task is not None:
                one.task.uncancel()
            last = "cancelled"
        except Exception:
            log.exception("%s failed", record.id)
            record.errors = [LineError("internal_error", "the server failed; its log tells more")]
            last = "failed"
        one.ending = True
        try:
            await self._finalize(one, last)
        except OSError:
            log.exception("%s has ended, but its files cannot be written: the next server tries again", record.id)

    async def _work(self, one: _Running) -> BatchStatus:
        """Ask for every line that has no answer, until the window closes; returns how the batch has ended."""
        record = one.record
        try:
            path = self.files.path(record.input_file_id)
            places = await self._on_disk(find_lines, path, record.endpoint, self._longest)
        except BadInput as bad:
            record.errors = bad.errors
            return "failed"
        except OSError:
            record.errors = [LineError("file_missing", f"{record.input_file_id} is not here any more")]
            return "failed"
        todo = await self._unanswered(one, places)
        if record.status == "validating":
            record.enter("in_progress")
            await self._save(record)
        end = one.progress.end = ExpectedEnd(self._asker.part_done, time.monotonic())
        lines = LongestFirst(end, partial(_request_id, record))
        try:
            async with asyncio.timeout(record.expires_at - time.time()), asyncio.TaskGroup() as group:
                group.create_task(lines.estimate(todo, partial(self._estimate, record)))
                for _ in todo:
                    await lines.ready()
                    share = await self._take_slot(record.holder)
                    answer = group.create_task(self._answer(one, lines.take(), end, share))
                    answer.add_done_callback(partial(self._free_slot, share))  # also of one cancelled before it begins
        except TimeoutError:
            await self._expire(one, places)
            return "expired"
        return "completed"

    async def _unanswered(self, one: _Running, places: Sequence[Place]) -> list[Place]:
        """The lines without an answer, the others counted."""
        record, progress = one.record, one.progress
        record.total = progress.total = len(places)
        completed = await self._on_disk(self._answered, record.output_file_id)
        failed = await self._on_disk(self._answered, record.error_file_id)
        progress.completed, progress.failed = len(completed), len(failed)
        return [place for place in places if place.custom_id not in completed and place.custom_id not in failed]

    async def _estimate(self, record: BatchRecord, place: Place) -> float:
        body = await self._on_disk(place.read, self.files.path(record.input_file_id))
        return await self._asker.estimate(record.endpoint, body)

    async def _take_slot(self, holder: str | None) -> Share:
        """Wait for a slot, and for the quota of a key and its room for answers, without holding the one meanwhile."""
        while True:
            while self._out >= max(1, LINES_PER_SLOT * self._slots()):  # without slots, one is asked again and again
                self._room.clear()
                await self._room.wait()
            share = self._asker.enter(holder) if self.files.may_answer(holder) else None
            if share is not None:
                self._out += 1
                return share
            await asyncio.sleep(RETRY)

    def _free_slot(self, share: Share, _: asyncio.Task[None]) -> None:
        self._asker.leave(share)
        self._out -= 1
        self._room.set()

    async def _answer(self, one: _Running, place: Place, end: ExpectedEnd, share: Share) -> None:
        record, progress = one.record, one.progress
        name = _request_id(record, place)
        end.ask(name)
        body = await self._on_disk(place.read, self.files.path(record.input_file_id))
        while (reply := await self._asker.ask(record.endpoint, body, record.holder, share, name)) is None:
            await asyncio.sleep(RETRY)
        fine = reply.status_code == 200
        await self._keep(record, [ResultLine(name, place.custom_id, reply, None)], fine=fine)
        progress.completed += fine
        progress.failed += not fine
        end.answer(name, time.monotonic())

    async def _expire(self, one: _Running, places: Sequence[Place]) -> None:
        """Tell of each line without an answer that its time is over."""
        late = LineError("batch_expired", "this request could not be served before the completion window ended")
        lines = [
            ResultLine(f"{one.record.id}_{place.offset}", place.custom_id, None, late)
            for place in await self._unanswered(one, places)
        ]
        await self._keep(one.record, lines, fine=False)
        one.progress.failed += len(lines)

    async def _keep(self, record: BatchRecord, lines: Sequence[ResultLine], *, fine: bool) -> None:
        name = record.output_file_id if fine else record.error_file_id
        # Shielded: an answer that is there counts, whatever breaks the batch off meanwhile.
        await asyncio.shield(self._on_disk(self._append, name, record.holder, lines))

    def _append(self, name: str, holder: str | None, lines: Sequence[ResultLine]) -> None:
        written = msgspec.json.Encoder().encode_lines(lines)
        ResultFile(self.files.path(name)).append(written)
        self.files.note_answers(name, holder, len(written))

    async def _finalize(self, one: _Running, last: BatchStatus) -> None:
        """Make files of the answers, and end."""
        record, progress = one.record, one.progress
        if last == "completed":
            record.enter("finalizing")
        progress.completed, progress.failed = await self._on_disk(self._publish, record)
        record.completed, record.failed = progress.completed, progress.failed
        record.enter(last)
        await self._save(record)

    def _publish(self, record: BatchRecord) -> tuple[int, int]:
        """Make files of the answers and the errors; returns how many of each there are."""
        counts = len(self._answered(record.output_file_id)), len(self._answered(record.error_file_id))
        for name, kind in ((record.output_file_id, "output"), (record.error_file_id, "error")):
            if self.files.path(name).exists():
                try:
                    self.files.find(name, record.holder)
                except NoSuchFile:
                    self.files.add(name, f"{record.id}_{kind}.jsonl", "batch_output", record.holder)
        return counts

    def _answered(self, file_id: str) -> set[str]:
        return set(ResultFile(self.files.path(file_id)).answered())

    async def _save(self, record: BatchRecord) -> None:
        await self._on_disk(self._folder.save, record)

    async def _on_disk(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work, *arguments)


def _request_id(record: BatchRecord, place: Place) -> str:
    """The name under which a line's request is known."""
    return f"{record.id.replace('batch_', 'batch_req_', 1)}_{place.offset}"
