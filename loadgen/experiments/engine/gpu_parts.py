"""Parts of `lengthwise bench gpu` within this process: parity, steps, prefill."""

import gc
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from transformers import LlamaConfig

from engine.forward.batch import RunningBatch
from engine.forward.graphs import Capture, DecodeGraphs, capture_nothing, capture_on
from engine.forward.prefill import Prefill
from engine.kv.arena import KvArena
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.messages import RowId, RowSpec
from engine.row import Choice, Row
from engine.torch_device import TorchDevice
from loadgen.experiments.engine.bench import OURS, THEIRS, Json
from loadgen.experiments.engine.contest import Generate, Lengthwise, Shape, contest, draw_rows
from loadgen.experiments.engine.setup import CHUNK_TOKENS, random_subject, read_clock
from models.network.attention import flash_attention, gather_attention, has_flash

Way = Callable[[torch.device], Capture] | None  # a decode step's capture; None: under a mask, as with holes

WAYS: Mapping[str, Way] = {"graph": capture_on, "eager": capture_nothing, "mask": None}

SPARE = 64  # columns by which a measured batch may grow


@dataclass
class GpuParts:
    """The parts with one network."""

    config: LlamaConfig
    dtype: torch.dtype
    device: torch.device

    def __post_init__(self) -> None:
        self.subject = random_subject(self.config, self.dtype, self.device)
        self.model = self.subject.model
        flash = has_flash(self.dtype, self.model.kv.head_dim, self.device)
        self.varlen = flash_attention if flash else gather_attention

    def parity(self) -> Json:
        """How many rows that join and leave around each other have their solo tokens."""
        specs = self._draw([(300, 24), (3, 31), (40, 38), (170, 45), (9, 52)])
        alone = {spec.row_id: self._answer([spec], None)[spec.row_id] for spec in specs}
        found = {name: self._answer(specs, way) for name, way in WAYS.items()}
        return {
            name: f"{sum(each[row] == tokens for row, tokens in alone.items())} of {len(specs)}"
            for name, each in found.items()
        }

    def _answer(self, specs: Sequence[RowSpec], way: Way) -> dict[RowId, list[int]]:
        batch, found = self._make_batch(4, 1024, way), dict[RowId, list[int]]()
        lifecycle = Lifecycle(TorchDevice(self.model, self.subject.text, batch, max_prefill_tokens=64))
        lifecycle.table.admit(specs)
        while not lifecycle.table.idle:
            for update in lifecycle.turn():
                if update.error is not None:
                    raise RuntimeError(update.error)
                found.setdefault(update.row_id, []).extend(update.token_ids)
        return found

    def graphs(self, rows: int, length: int) -> Json:
        graphs = DecodeGraphs(self.model, self._make_arena(rows, length + SPARE), self.varlen)
        before = torch.cuda.memory_reserved()
        seconds = self._time(graphs.prepare, repeats=1, warm=0)
        return {"count": len(graphs), "capture_s": seconds, "MiB": (torch.cuda.memory_reserved() - before) / 2**20}

    def step(self, rows: int, length: int) -> Json:
        """Milliseconds of a decode step of rows of `length` / 2 to `length`, and share of the floor; `turn` adds
        sampling, `host_share` is waiting.
        """
        lengths, floor = [length - place * length // (2 * rows) for place in range(rows)], self.subject.floor
        least = (floor.weight_bytes + sum(lengths) * floor.kv_bytes_per_token) / floor.bandwidth
        found: Json = {"floor_ms": 1e3 * least}
        for name, way in WAYS.items():
            batch = self._fill(lengths, way)
            found[f"{name}_first_ms"] = 1e3 * self._time(batch.step, repeats=1, warm=0)
            seconds = self._time(batch.step)
            found |= {f"{name}_ms": 1e3 * seconds, f"{name}_share_of_floor": least / seconds}
            if name == "graph":
                device = TorchDevice(self.model, self.subject.text, batch, max_prefill_tokens=CHUNK_TOKENS)
                turn = self._time(partial(device.step, 1))
                del device
                found |= {"turn_ms": 1e3 * turn, "host_share": 1 - seconds / turn}
            del batch
            gc.collect()  # a step and its body form a cycle, and the next batch needs the memory
        return found

    def prefill(self, tokens: int) -> Json:
        """Milliseconds of prompts of new lengths, and of one length repeated."""

        def read(count: int) -> None:
            Prefill(self.model, self._make_rows([count])).finish(max(tokens, CHUNK_TOKENS))

        new = [self._time(partial(read, tokens - 37 * place), repeats=1, warm=0) for place in range(4)]
        again = self._time(partial(read, tokens), repeats=3, warm=1)
        return {"new_ms": [1e3 * each for each in new], "again_ms": 1e3 * again, "tokens_s": tokens / again}

    def generate(self, rows: int) -> Json:
        """Tokens/s, prefill included, beside transformers' `generate`."""
        engines = {OURS: Lengthwise(self.subject).run, THEIRS: Generate(self.subject.load_plain()).run}
        ours, theirs = contest(engines, partial(self._draw, [(64, 32)] * rows), 1).values()
        if trouble := ours.trouble or theirs.trouble:
            raise RuntimeError(trouble)
        return {OURS: ours.rate, THEIRS: theirs.rate, "ratio": ours.rate / theirs.rate}

    def _draw(self, shapes: Sequence[Shape], seed: int = 0) -> list[RowSpec]:
        return draw_rows(random.Random(seed), self.subject.vocab, shapes)

    def _make_rows(self, lengths: Sequence[int]) -> list[Row]:
        specs = self._draw([(length, 10**6) for length in lengths], len(lengths))
        return [Row(spec, self.subject.text, frozenset()) for spec in specs]

    def _make_arena(self, rows: int, columns: int) -> KvArena:
        return KvArena(self.model.kv, rows * columns, max_rows=rows, by_token=True)

    def _make_batch(self, rows: int, columns: int, way: Way) -> RunningBatch:
        arena = self._make_arena(rows, columns)
        graphs = None if way is None else DecodeGraphs(self.model, arena, self.varlen, way)
        return RunningBatch(self.model, arena, headroom=0, graphs=graphs)

    def _fill(self, lengths: Sequence[int], way: Way) -> RunningBatch:
        kv = self.model.kv
        batch = self._make_batch(len(lengths), max(lengths) + SPARE, way)
        shape = (2, kv.layers, kv.kv_heads, max(lengths), kv.head_dim)
        keys, values = torch.randn(shape, dtype=kv.dtype, device=kv.device)
        for row, length in zip(self._make_rows(lengths), lengths, strict=True):
            row.accept(Choice(5))
            batch.insert(row, RowKv(keys[:, :, :length], values[:, :, :length]), lasting=False)
        return batch

    def _time(self, work: Callable[[], object], repeats: int = 9, warm: int = 2) -> float:
        """Median seconds on the device."""
        seconds = []
        for _ in range(warm + repeats):
            begin = read_clock(self.device)
            work()
            seconds.append(read_clock(self.device) - begin)
        return statistics.median(seconds[warm:])
