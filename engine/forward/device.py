"""The device that computes with torch: chunks of prefill in a stream of their own, decode steps, sampled tokens."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.device import Outcome, OutOfMemoryError
from engine.forward.batch import RunningBatch
from engine.forward.prefill import Prefill
from engine.forward.prefill_stream import PrefillStream
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.messages import RowSpec, RowUpdate, Tally
from engine.row import Choice, Row
from engine.sampling import sampler as sampling
from engine.sampling.grammar import Grammars, Matcher
from models.network.loader import LoadedModel
from models.text import Text

log = logging.getLogger(__name__)


class TorchDevice:
    """A `Device` of engine.device: a model, its running batch and the prefill beside it."""

    def __init__(
        self,
        model: LoadedModel,
        text: Text,
        batch: RunningBatch,
        max_prefill_tokens: int,
        grammars: Grammars,
        prefixes: PrefixCache[RowKv] | None = None,
    ) -> None:
        self._model = model
        self._text = text
        self._max_prefill_tokens = max_prefill_tokens
        self._grammars = grammars
        self._prefixes = prefixes
        self._stream = PrefillStream(model.device)
        self.batch = batch
        self.prefill: Prefill | None = None
        """The group whose prompts are being read."""

    @property
    def prefilling(self) -> Sequence[Row]:
        return () if self.prefill is None else self.prefill.rows

    def new_row(self, spec: RowSpec) -> Row:
        grammar = spec.sampling.grammar
        matcher = None if grammar is None else Matcher(self._grammars, grammar)
        return Row(spec, self._text, self._model.end_token_ids, matcher)

    def kept_prefix(self, row: Row) -> int:
        return 0 if self._prefixes is None else self._prefixes.length(row.tokens, row.cache_scope)

    def kv_bytes(self, row: Row) -> int:
        return row.cached_tokens * self._model.kv.bytes_per_token

    def insert(self, row: Row, *, lasting: bool) -> None:
        assert row.kv is not None, "a row joins with its K and V"
        self._stream.await_fetched()
        with _refusing():
            self.batch.insert(row, row.kv, lasting=lasting)
        row.drop_kv()

    def drop(self, row: Row) -> None:
        self._stream.wait()  # what is dropped may be in the middle of a chunk
        if self.prefill is not None:
            with self._stream.working():  # the next chunk reads what is moved together here
                self.prefill.drop(row.row_id)
            if not self.prefill.rows:
                self.prefill = None

    def save(self, row: Row) -> bool:
        self._stream.await_fetched()
        try:
            row.kv = self.batch.extract(row) if row.kv is None else row.kv.to_host()
        except RuntimeError as error:  # what torch raises for any lack of memory, the host's too
            log.warning("K and V of a row could not be copied to host memory, so they are computed again: %s", error)
            return False
        return True

    def fetch(self, row: Row) -> None:
        if row.kv is not None:
            with _refusing():
                row.kv = self._stream.fetched(row.kv)

    def unreported(self, rows: Sequence[Row]) -> Sequence[RowUpdate]:
        return ()

    # Computing

    def launch_chunk(self, rows: Sequence[Row]) -> Tally:
        try:
            with _refusing(), self._stream.working():
                if self.prefill is None:
                    self.prefill = Prefill(self._model, rows, self._prefixes)
                self.prefill.launch(self._max_prefill_tokens)
        except Exception:
            self.prefill = None
            raise
        return self.prefill.tally

    def chunk_done(self) -> bool:
        return self._stream.done

    def collect_chunk(self) -> Outcome[Row]:
        self._stream.wait()
        if self.prefill is None:  # its last row was cancelled while the chunk was under way
            return Outcome()
        ended = self.prefill.collect()
        if not self.prefill.rows:
            self.prefill = None
        if not ended:
            return Outcome()
        for done in ended:
            self._stream.hand_over(done.kv.keys, done.kv.values, done.logits)
            done.row.kv = done.kv
        rows = [done.row for done in ended]
        return _choose(rows, torch.stack([done.logits for done in ended]), Tally(), read=rows)

    def enter(self, rows: Sequence[Row]) -> Outcome[Row]:
        fed = [row.length for row in rows]
        with _refusing():
            logits = self.batch.enter(rows)
        running = len(self.batch) - len(rows)
        tally = Tally(prompt=sum(fed), pad=max(fed) * len(self.batch) - sum(fed) - running)
        return _choose(self.batch.rows, logits, tally)

    def step(self, iterations: int) -> Outcome[Row]:
        """One decode iteration, whatever was asked for: each one's tokens are told at once."""
        with _refusing():
            logits = self.batch.step()
        return _choose(self.batch.rows, logits, self.batch.reads())


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise a torch-free OutOfMemoryError in place of torch's."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        # What failed holds tensors in its frames, views of K and V among them: memory that is to be given back.
        traceback.clear_frames(error.__traceback__)
        raise OutOfMemoryError(str(error)) from error


def _choose(rows: Sequence[Row], logits: Tensor, tally: Tally, read: Sequence[Row] = ()) -> Outcome[Row]:
    """Sample each row's next token and let the rows take them. Rows that have ended get none."""
    live = [place for place, row in enumerate(rows) if not row.ended]
    tally += Tally(generated=len(live), invalid=len(rows) - len(live))
    if len(live) < len(rows):
        rows, logits = [rows[place] for place in live], logits[live]
    try:
        choices = sampling.sample(rows, logits)
    except Exception as error:
        return Outcome((), [(list(rows), error)], tally, read)
    updates: list[RowUpdate] = []
    failures: list[tuple[Sequence[Row], Exception]] = []
    for row, choice in zip(rows, choices, strict=True):
        try:
            if not isinstance(choice, Choice):
                raise choice
            updates.append(row.accept(choice))
        except Exception as error:
            failures.append(([row], error))
    return Outcome(updates, failures, tally, read)
