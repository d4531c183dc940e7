"""Batches under way: lines of their inputs become requests below all others, and answers go to the disk one by one.

A batch keeps as many requests with the dispatcher as there are slots, so that a slot that nobody else wants is filled
at once. It gives out the longest ones first, by prediction: with equal slots that ends soonest (Graham 1969, longest
processing time first), since no long one is left to run alone. A server that goes on from an earlier one's files asks
only for what has no answer yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from server.batches.batch import BatchFolder, BatchRecord, BatchStatus, LineError, Progress, new_batch_id
from server.batches.files import FileStore, NoSuchFile, new_file_id
from server.batches.lines import BadInput, Place, ResultFile, find_lines

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_BATCHES = 1000
"""Batches that are remembered; of those that have ended, the oldest go first."""

RETRY = 1.0
"""Seconds after which a line is asked for again that there was no room for."""


class LineReply(msgspec.Struct, frozen=True):
    """The answer to a request as HTTP would have it."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class ResultLine(msgspec.Struct, frozen=True):
    """A line of an output or an error file."""

    id: str
    custom_id: str
    response: LineReply | None
    error: LineError | None


class Asker(Protocol):
    """Asks the model. Event loop only."""

    async def estimate(self, endpoint: str, body: bytes) -> float:
        """Tokens that a request is expected to take, read and made; 0 for one that will be refused."""
        ...

    async def ask(self, endpoint: str, body: bytes, holder: str | None, request_id: str) -> LineReply | None:
        """The answer to a request, also where it is an error; None where there is no room for it now."""
        ...


@dataclass(slots=True)
class _Running:
    record: BatchRecord
    progress: Progress
    task: asyncio.Task[None] | None = None
    ending: bool = False
    """Whether only its files are left to be made, so that it cannot be cancelled any more."""


class Batches:
    """All batches of a server. Event loop only."""

    def __init__(self, folder: Path, capacity: int, asker: Asker, slots: Callable[[], int]) -> None:
        """`capacity` in bytes of all files. Raises OSError."""
        self.files = FileStore(folder / "files", capacity)
        self._folder = BatchFolder(folder / "batches")
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
        made = (name for one in open_ for name in (one.record.output_file_id, one.record.error_file_id))
        self.files.remove_rests(frozenset(made))
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
        """Begin a batch. Raises NoSuchFile."""
        self.files.find(input_file_id, holder)
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

    async def _begin(self, record: BatchRecord) -> None:
        await self._save(record)
        await self._forget_oldest()
        self._running[record.id] = one = _Running(record, Progress())
        self._launch(one)

    async def _forget_oldest(self) -> None:
        ended = (name for name, one in self._running.items() if not one.record.under_way)
        if len(self._running) >= MOST_BATCHES and (oldest := next(ended, None)) is not None:
            del self._running[oldest]
            await self._on_disk(self._folder.remove, oldest)

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
            places = await self._on_disk(find_lines, self.files.path(record.input_file_id), record.endpoint)
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
        works = await self._estimate(one, todo)
        one.progress.work_left, one.progress.began = sum(works.values()), time.monotonic()
        todo.sort(key=lambda place: -works[place.custom_id])
        try:
            async with asyncio.timeout(record.expires_at - time.time()), asyncio.TaskGroup() as group:
                for place in todo:
                    await self._take_slot()
                    answer = group.create_task(self._answer(one, place, works[place.custom_id]))
                    answer.add_done_callback(self._free_slot)  # also of one that is cancelled before it begins
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

    async def _estimate(self, one: _Running, places: Sequence[Place]) -> dict[str, float]:
        path, endpoint = self.files.path(one.record.input_file_id), one.record.endpoint
        return {
            place.custom_id: await self._asker.estimate(endpoint, await self._on_disk(place.read, path))
            for place in places
        }

    async def _take_slot(self) -> None:
        while self._out >= max(1, self._slots()):  # with none, one is asked again and again until there are some
            self._room.clear()
            await self._room.wait()
        self._out += 1

    def _free_slot(self, _: asyncio.Task[None]) -> None:
        self._out -= 1
        self._room.set()

    async def _answer(self, one: _Running, place: Place, work: float) -> None:
        record, progress = one.record, one.progress
        name = f"{record.id.replace('batch_', 'batch_req_', 1)}_{place.offset}"
        body = await self._on_disk(place.read, self.files.path(record.input_file_id))
        while (reply := await self._asker.ask(record.endpoint, body, record.holder, name)) is None:
            await asyncio.sleep(RETRY)
        fine = reply.status_code == 200
        await self._keep(one, ResultLine(name, place.custom_id, reply, None), fine=fine)
        progress.completed += fine
        progress.failed += not fine
        progress.work_left -= work
        progress.work_done += work

    async def _expire(self, one: _Running, places: Sequence[Place]) -> None:
        """Tell of each line without an answer that its time is over."""
        late = LineError("batch_expired", "this request could not be served before the completion window ended")
        for place in await self._unanswered(one, places):
            await self._keep(
                one, ResultLine(f"{one.record.id}_{place.offset}", place.custom_id, None, late), fine=False
            )
            one.progress.failed += 1

    async def _keep(self, one: _Running, line: ResultLine, *, fine: bool) -> None:
        name = one.record.output_file_id if fine else one.record.error_file_id
        # Shielded: an answer that is there counts, whatever breaks the batch off meanwhile.
        file = ResultFile(self.files.path(name))
        await asyncio.shield(self._on_disk(file.append, msgspec.json.encode(line) + b"\n"))

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
