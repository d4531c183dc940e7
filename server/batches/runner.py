"""The batches of a server: begun, found, cancelled, remembered for a while, and taken on from an earlier server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from server.batches.asking import Asker
from server.batches.batch import BatchFolder, BatchRecord, Progress, new_batch_id
from server.batches.files import FileStore, new_file_id
from server.batches.run import Means, Run
from server.batches.slots import Slots

MOST_BATCHES = 1000
"""Batches that are remembered; of those that have ended, the oldest go first."""

MOST_UNDER_WAY = 100
"""Batches of a key that may be under way."""


class TooManyBatches(Exception):
    """A key has as many batches under way as it may, or all keys together."""


class Batches:
    """All batches of a server. Event loop only."""

    def __init__(self, folder: Path, capacity: int, longest: int, asker: Asker, slots: Callable[[], int]) -> None:
        """`capacity` in bytes of all files, `longest` in those of a line. Raises OSError."""
        self.files = FileStore(folder / "files", capacity)
        records, disk = BatchFolder(folder / "batches"), ThreadPoolExecutor(1, "batches")
        self._means = Means(self.files, records, asker, Slots(asker, self.files, slots), disk, longest)
        self._runs = {record.id: Run(record, self._means) for record in records.load()}
        self._stopped = False

    def start(self) -> None:
        """Go on with what an earlier server left."""
        open_ = [run for run in self._runs.values() if run.record.under_way]
        records = [run.record for run in open_]
        made = ((name, record.holder) for record in records for name in (record.output_file_id, record.error_file_id))
        self.files.remove_rests(dict(made))
        for run in open_:
            run.start()

    async def stop(self) -> None:
        """Break off; what has no answer yet is asked for by the next server."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._stopped:  # at the drain, or else at the end
            self._stopped = True
            await self._means.on_disk(int)  # what is being written is done then
            self._means.disk.shutdown()

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
        holders = [run.record.holder for run in self._runs.values() if run.record.under_way]
        for count, most in ((holders.count(holder), MOST_UNDER_WAY), (len(holders), MOST_BATCHES)):
            if count >= most:
                raise TooManyBatches(f"{count} batches are under way, as many as may be; try again later")

    async def _begin(self, record: BatchRecord) -> None:
        self._runs[record.id] = run = Run(record, self._means)  # it counts from now on
        try:
            await self._means.on_disk(self._means.folder.save, record)
        except OSError:
            del self._runs[record.id]
            raise
        await self._forget_oldest()
        run.start()

    async def _forget_oldest(self) -> None:
        """Where too many are remembered, forget a batch that has ended: the oldest of the key that has most of them."""
        if len(self._runs) <= MOST_BATCHES:
            return
        ended = [run.record for run in self._runs.values() if not run.record.under_way]
        held = Counter(record.holder for record in ended)
        oldest = max(ended, key=lambda record: held[record.holder])  # the first of several
        del self._runs[oldest.id]
        await self._means.on_disk(self._means.folder.remove, oldest.id)

    def find(self, name: str, holder: str | None) -> tuple[BatchRecord, Progress] | None:
        """A batch of this key's; None where there is none."""
        run = self._runs.get(name)
        return None if run is None or run.record.holder != holder else (run.record, run.progress)

    def all_of(self, holder: str | None) -> list[tuple[BatchRecord, Progress]]:
        """The batches of a key, the latest first."""
        own = [(run.record, run.progress) for run in self._runs.values() if run.record.holder == holder]
        return own[::-1]

    async def cancel(self, name: str) -> None:
        """Break a batch off for good; what has an answer keeps it."""
        await self._runs[name].cancel()

    def uses(self, file_id: str) -> bool:
        """Whether a batch under way reads a file."""
        return any(run.record.under_way and run.record.input_file_id == file_id for run in self._runs.values())
