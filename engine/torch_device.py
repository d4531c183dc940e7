"""The torch `Device`."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass

import torch

from engine.device import OutOfMemoryError, StepOutcome
from engine.forward.batch import RunningBatch
from engine.forward.decode import Decode, accept
from engine.forward.prefill import Prefill
from engine.forward.prefill_stream import PrefillStream
from engine.forward.shortage import refusing
from engine.kv.device_blocks import DeviceBlocks
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.messages import RowSpec, RowUpdate, StepStats
from engine.row import Row
from engine.sampling import sampler as sampling
from engine.sampling.grammar import Grammars, Matcher
from models.network.loader import LoadedModel
from models.text import Text

log = logging.getLogger(__name__)


@dataclass(eq=False)
class TorchDevice:
    model: LoadedModel
    text: Text
    batch: RunningBatch
    max_prefill_tokens: int
    grammars: Grammars | None = None
    prefixes: PrefixCache[RowKv] | None = None
    _: KW_ONLY
    ahead: bool | None = None  # None: on CUDA
    prefill: Prefill | None = None

    def __post_init__(self) -> None:
        text, model, device = self.text, self.model, self.model.device
        width = max(text.vocab_size, model.vocab_size)
        self._grammars = Grammars(text.to_json, width, model.end_token_ids) if self.grammars is None else self.grammars
        self._blocks = DeviceBlocks(device)
        self._stream = PrefillStream(device)
        self._decode = Decode(self.batch, device, ahead=device.type == "cuda" if self.ahead is None else self.ahead)

    @property
    def prefilling(self) -> Sequence[Row]:
        return () if self.prefill is None else self.prefill.rows

    @property
    def skips_padding(self) -> bool:
        return self.model.reads_exactly

    def new_row(self, spec: RowSpec) -> Row:
        grammar = spec.sampling.grammar
        matcher = None if grammar is None else Matcher(self._grammars, grammar)
        return Row(spec, self.text, self.model.end_token_ids, matcher)

    def kept_prefix(self, row: Row) -> int:
        return 0 if self.prefixes is None else self.prefixes.length(row.tokens, row.cache_scope)

    def kv_bytes(self, row: Row) -> int:
        return row.cached_tokens * self.model.kv.bytes_per_token

    def insert(self, row: Row, *, lasting: bool) -> None:
        assert row.kv is not None, "a row joins with its K and V"
        self._stream.await_fetched()
        with self._refusing():
            self.batch.insert(row, row.kv, lasting=lasting)
        row.kv = None

    def drop(self, row: Row) -> None:
        self._stream.wait()  # the row may be in a chunk
        if self.prefill is not None:
            with self._stream.working():  # the next chunk reads it
                self.prefill.drop(row.row_id)
            if not self.prefill.rows:
                self.prefill = None

    def save(self, row: Row) -> bool:
        self._stream.await_fetched()
        try:
            row.kv = self.batch.extract(row) if row.kv is None else row.kv.to_host()
        except (RuntimeError, MemoryError) as error:  # any lack of memory
            log.warning("K and V of a row could not be copied to host memory, so they are computed again: %s", error)
            return False
        return True

    def fetch(self, row: Row) -> None:
        if row.kv is not None:
            with self._refusing():
                row.kv = self._stream.fetched(row.kv)

    def unreported(self, rows: Sequence[Row]) -> Sequence[RowUpdate]:
        return ()

    # Computing

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            with refusing():
                yield
        except OutOfMemoryError:
            self._blocks.clear()
            raise

    def launch_chunk(self, rows: Sequence[Row]) -> StepStats:
        try:
            with self._refusing(), self._stream.working():
                if self.prefill is None:
                    self.prefill = Prefill(self.model, rows, self.prefixes, self._blocks)
                self.prefill.launch(self.max_prefill_tokens)
        except Exception:
            self.prefill = None
            raise
        return self.prefill.tally

    def chunk_done(self) -> bool:
        return self._stream.done

    def collect_chunk(self) -> StepOutcome[Row]:
        self._stream.wait()
        if self.prefill is None:  # cancelled during the chunk
            return StepOutcome()
        try:
            with self._refusing():
                with self._stream.copying():
                    ended = self.prefill.collect()
                for done in ended:
                    self._stream.hand_over(done.kv.keys, done.kv.values, done.logits)
                rows = [done.row for done in ended]
                choices = sampling.sample(rows, torch.stack([done.logits for done in ended])) if rows else []
        except Exception:
            self.prefill = None
            raise
        if not self.prefill.rows:
            self.prefill = None
        for done in ended:
            done.row.kv = done.kv
        return accept(rows, choices, StepStats(generated=len(rows)), read=rows)

    def settle(self) -> StepOutcome[Row]:
        with self._refusing():
            return self._decode.settle()

    def enter(self, rows: Sequence[Row]) -> StepOutcome[Row]:
        with self._refusing():
            return self._decode.enter(rows)

    def step(self, iterations: int) -> StepOutcome[Row]:
        with self._refusing():
            return self._decode.step()
