"""A batch under way: lines of its input become requests below all others, and answers go to the disk one by one.

One that goes on where an earlier server ended asks only for what has no answer yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from models.files import is_disk_full
from server.batches.asking import Asker, ResultLine
from server.batches.batch import BatchFolder, BatchRecord, BatchStatus, LineError, Progress
from server.batches.expected_end import ExpectedEnd
from server.batches.files import FileStore
from server.batches.lines import BadInput, Place, find_lines
from server.batches.order import LongestFirst
from server.batches.results import Results
from server.batches.slots import Slots
from server.http.quota import Share

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Means:
    """What the batches of a server share. Event loop only."""

    files: FileStore
    folder: BatchFolder
    asker: Asker
    slots: Slots
    disk: ThreadPoolExecutor
    """Of one thread, so that what is written last is there last."""
    longest: int
    """Bytes of a line at most."""

    async def on_disk(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.disk, work, *arguments)

    async def write(self, work: Callable[..., T], *arguments: object) -> T:
        """Write for a batch under way, again and again while the disk is full. Raises OSError where something else is
        wrong."""
        told = False
        while True:
            try:
                # Shielded: an answer that is there counts, whatever breaks the batch off meanwhile.
                return await asyncio.shield(self.on_disk(work, *arguments))
            except OSError as error:
                if not is_disk_full(error):
                    raise
                if not told:
                    log.error("batches wait until there is room for what they write: %s", error)
                    told = True
            await self.slots.rest()


class Run:
    """A batch in this process. Event loop only."""

    def __init__(self, record: BatchRecord, means: Means) -> None:
        self.record = record
        self.progress = Progress(record.total, record.completed, record.failed)
        self._means = means
        self._results = Results(record, means.files)
        self._input = means.files.path(record.input_file_id)
        self._ending = False  # whether only its files are left to be made, so that it cannot be cancelled any more
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, or go on."""
        self.task = asyncio.create_task(self._run(), name=self.record.id)

    async def cancel(self) -> None:
        """Break it off for good; what has an answer keeps it."""
        if self.task is not None and not self._ending and self.record.status != "cancelling":
            self.record.enter("cancelling")
            self.task.cancel()  # at once: later, the batch may have ended, or the client that asks may be gone
            await self._means.on_disk(self._means.folder.save, self.record)

    async def _run(self) -> None:
        record = self.record
        last: BatchStatus = "cancelled" if record.status == "cancelling" else "completed"
        try:
            if record.status in ("validating", "in_progress"):
                last = await self._work()
        except asyncio.CancelledError:
            if record.status != "cancelling":
                raise  # the server ends
            if self.task is not None:
                self.task.uncancel()
            last = "cancelled"
        except Exception:
            log.exception("%s failed", record.id)
            record.errors = [LineError("internal_error", "the server failed; its log tells more")]
            last = "failed"
        self._ending = True
        try:
            await self._finalize(last)
        except OSError:
            log.exception("%s has ended, but its files cannot be written: the next server tries again", record.id)

    async def _work(self) -> BatchStatus:
        """Ask for every line that has no answer, until the window closes; returns how the batch has ended."""
        record, means = self.record, self._means
        try:
            places = await means.on_disk(find_lines, self._input, record.endpoint, means.longest)
        except BadInput as bad:
            record.errors = bad.errors
            return "failed"
        except OSError:
            record.errors = [LineError("file_missing", f"{record.input_file_id} is not here any more")]
            return "failed"
        todo = await self._find_unanswered(places)
        if record.status == "validating":
            record.enter("in_progress")
            await means.write(means.folder.save, record)
        end = self.progress.end = ExpectedEnd(means.asker.part_done, time.monotonic())
        lines = LongestFirst(end, self._request_id)
        try:
            async with asyncio.timeout(record.expires_at - time.time()), asyncio.TaskGroup() as group:
                group.create_task(lines.estimate(todo, self._estimate))
                for _ in todo:
                    await lines.ready()
                    share = await means.slots.take(record.holder)
                    begun = asyncio.Event()  # one after another, so that the longest are the first in the queue
                    answer = group.create_task(self._answer(lines.take(), end, share, begun))
                    answer.add_done_callback(partial(means.slots.free, share))  # also of one cancelled before it begins
                    await begun.wait()
        except TimeoutError:
            await self._expire(places)
            return "expired"
        return "completed"

    async def _find_unanswered(self, places: Sequence[Place]) -> list[Place]:
        """The lines without an answer, the others counted."""
        self.record.total = self.progress.total = len(places)
        completed, failed = await self._means.on_disk(self._results.find_answered)
        self.progress.completed, self.progress.failed = len(completed), len(failed)
        return [place for place in places if place.custom_id not in completed | failed]

    async def _estimate(self, place: Place) -> float:
        body = await self._means.on_disk(place.read, self._input)
        return await self._means.asker.estimate(self.record.endpoint, body)

    async def _answer(self, place: Place, end: ExpectedEnd, share: Share, begun: asyncio.Event) -> None:
        record, means, name = self.record, self._means, self._request_id(place)
        end.ask(name)
        body = await means.on_disk(place.read, self._input)
        asked = record.endpoint, body, record.holder, share, name, begun.set
        while (reply := await means.asker.ask(*asked)) is None:
            begun.set()  # another may be smaller
            await means.slots.rest()
        begun.set()  # also where it is refused
        fine = reply.status_code == 200
        await self._keep([ResultLine(name, place.custom_id, reply, None)], fine=fine)
        self.progress.completed += fine
        self.progress.failed += not fine
        end.answer(name, time.monotonic())

    async def _expire(self, places: Sequence[Place]) -> None:
        """Tell of each line without an answer that its time is over."""
        late = LineError("batch_expired", "this request could not be served before the completion window ended")
        lines = [
            ResultLine(f"{self.record.id}_{place.offset}", place.custom_id, None, late)
            for place in await self._find_unanswered(places)
        ]
        await self._keep(lines, fine=False)
        self.progress.failed += len(lines)

    async def _keep(self, lines: Sequence[ResultLine], *, fine: bool) -> None:
        await self._means.write(self._results.append, lines, fine)

    async def _finalize(self, last: BatchStatus) -> None:
        """Make files of the answers, and end."""
        record, progress, means = self.record, self.progress, self._means
        if last == "completed":
            record.enter("finalizing")
        progress.completed, progress.failed = await means.write(self._results.publish)
        record.completed, record.failed = progress.completed, progress.failed
        record.enter(last)
        await means.write(means.folder.save, record)

    def _request_id(self, place: Place) -> str:
        """The name under which a line's request is known."""
        return f"{self.record.id.replace('batch_', 'batch_req_', 1)}_{place.offset}"
