"""Carries out `lengthwise bench gpu`: what a person with a bare GPU machine runs once, and sends back the file of.
What is right and how fast it is, on one device with one network; parts fail one by one: an error is a result too.

On a CPU gathering attention and steps without capture stand in for flash attention and graphs.
"""

from __future__ import annotations

import gc
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from transformers import LlamaConfig

from engine.forward.batch import RunningBatch
from engine.forward.graphs import Capture, DecodeGraphs, capture_nothing, capture_on
from engine.forward.prefill import Prefill
from engine.kv.arena import KvArena
from engine.kv.row_kv import RowKv
from engine.messages import RowId, RowSpec
from engine.pipeline import Pipeline
from engine.row import Choice, Row
from engine.sampling.params import SamplingParams
from loadgen.console import format_number
from loadgen.experiments.engine.bench import Generate, Job, Lengthwise, contest, draw_jobs
from loadgen.experiments.engine.host import measure_host
from loadgen.experiments.engine.setup import (
    CHUNK_TOKENS,
    Floor,
    Subject,
    describe_machine,
    eight_billion,
    make_network,
    measure_bandwidth,
    random_subject,
    read_clock,
    tiny,
    weight_bytes,
)
from loadgen.experiments.options import GpuBench
from loadgen.result_file import require_writable, save_json
from models.network.attention import (
    Runs,
    VarlenAttention,
    attend,
    flash_attention,
    gather_attention,
    has_flash,
    prepare_mask,
)
from server.composition.devices import hush_transformers

Json: TypeAlias = dict[str, Any]
Way: TypeAlias = Callable[[torch.device], Capture] | None
"""A decode step's capture; None: under a mask, as rows with holes are stepped."""

WAYS: Mapping[str, Way] = MappingProxyType({"graph": capture_on, "eager": capture_nothing, "mask": None})

SPARE = 64
"""Columns that a batch may grow by while it is measured."""

CALLS = 20
"""Calls of one layer's attention that are timed together."""

TESTS = Path("tests/engine/forward/test_cuda.py")


def run_tests() -> Json:
    """The tests that want a GPU, where the repository is."""
    if not TESTS.exists():
        return {"left out": "no repository here"}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-o", "addopts=", "-m", "gpu", str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return {"exit code": done.returncode, "end": done.stdout[-600:]}


def count_equal(config: LlamaConfig, device: torch.device) -> Json:
    """Rows that join and leave around each other in float32: how many have the tokens that they have alone."""
    subject = random_subject(config, torch.float32, device)
    jobs = draw_jobs(random.Random(0), subject.vocab, [(length, 1) for length in (300, 3, 40, 170, 9)])
    specs = [RowSpec(place, job.prompt, _greedy(24 + 7 * place)) for place, job in enumerate(jobs)]
    alone = {spec.row_id: _answer(subject, [spec], None)[spec.row_id] for spec in specs}
    found = {name: _answer(subject, specs, way) for name, way in WAYS.items()}
    return {
        name: f"{sum(each[row] == tokens for row, tokens in alone.items())} of {len(specs)}"
        for name, each in found.items()
    }


def _answer(subject: Subject, specs: Sequence[RowSpec], way: Way) -> dict[RowId, list[int]]:
    batch = _make_batch(subject, 4, 1024, way, gather_attention)
    pipeline, found = Pipeline(subject.model, subject.text, batch, max_prefill_tokens=64), dict[RowId, list[int]]()
    pipeline.admit(specs)
    while not pipeline.idle:
        for update in pipeline.turn():
            if update.error is not None:
                raise RuntimeError(update.error)
            found.setdefault(update.row_id, []).extend(update.token_ids)
    return found


def _make_batch(subject: Subject, rows: int, columns: int, way: Way, attention: VarlenAttention) -> RunningBatch:
    model = subject.model
    arena = KvArena(model.kv, rows * columns, max_rows=rows, by_token=True)
    graphs = None if way is None else DecodeGraphs(model, arena, attention, way)
    return RunningBatch(model, arena, headroom=0, graphs=graphs)


def _greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)


class Parts:
    """What is measured with one network."""

    def __init__(
        self, config: LlamaConfig, dtype: torch.dtype, device: torch.device, clock: Callable[[], float]
    ) -> None:
        self._config, self._dtype, self._device, self._clock = config, dtype, device, clock
        self._subject = random_subject(config, dtype, device)
        model = self._subject.model
        self._attention = flash_attention if has_flash(dtype, model.kv.head_dim, device) else gather_attention
        bandwidth = measure_bandwidth(device, clock)
        self._floor = Floor(bandwidth, weight_bytes(model.network), model.kv.bytes_per_token)

    @property
    def bounds(self) -> Json:
        """What a step cannot be faster than."""
        return asdict(self._floor)

    def rounding(self) -> Json:
        """Relative errors of a step's logits in the dtype that is served, to one pass over all tokens."""
        model = self._subject.model
        ended = Prefill(model, self._make_rows([200, 64, 7])).finish(CHUNK_TOKENS)
        for one in ended:
            one.row.accept(Choice(int(one.logits.argmax())))
        texts = [[*one.row.prompt, *one.row.generated] for one in ended]
        plain = torch.stack([model.network.read(torch.tensor([text], device=self._device))[0, -1] for text in texts])
        errors = {}
        for name, way in WAYS.items():
            batch = _make_batch(self._subject, len(ended), 512, way, self._attention)
            for one in ended:
                batch.insert(one.row, one.kv, lasting=False)
            errors[name] = float((batch.step() - plain).norm() / plain.norm())
        return errors

    def graphs(self, rows: int, length: int) -> Json:
        """All graphs of a server's batch."""
        model = self._subject.model
        arena = KvArena(model.kv, rows * (length + SPARE), max_rows=rows, by_token=True)
        graphs = DecodeGraphs(model, arena, self._attention)
        before = self._reserved()
        seconds = self._time(graphs.prepare, repeats=1, warm=0)
        return {"count": len(graphs), "capture_s": seconds, "MiB": (self._reserved() - before) / 2**20}

    def step(self, rows: int, length: int) -> Json:
        """Milliseconds of a decode step of rows that are half as long, to as long, as `length`, and the floor's share;
        `turn`: with tokens chosen and taken, `host_share`: what of it the device waits for.
        """
        lengths = _ragged(rows, length)
        floor = self._floor
        least = (floor.weight_bytes + sum(lengths) * floor.kv_bytes_per_token) / floor.bandwidth
        found: Json = {"floor_ms": 1e3 * least}
        for name, way in WAYS.items():
            batch = self._fill(lengths, way)
            found[f"{name}_first_ms"] = 1e3 * self._time(batch.step, repeats=1, warm=0)
            seconds = self._time(batch.step)
            found |= {f"{name}_ms": 1e3 * seconds, f"{name}_share_of_floor": least / seconds}
            if name == "graph":
                model, text = self._subject.model, self._subject.text
                turn = self._time(partial(Pipeline(model, text, batch, max_prefill_tokens=CHUNK_TOKENS).device.step, 1))
                found |= {"turn_ms": 1e3 * turn, "host_share": 1 - seconds / turn}
            del batch
            gc.collect()  # a step and its body refer to each other, and the next batch wants the memory
        return found

    def attention(self, rows: int, length: int) -> Json:
        """Milliseconds of one layer's attention under a mask, and over runs by two bounds of the longest row."""
        kv, device, lengths = self._subject.model.kv, self._device, _ragged(rows, length)
        tokens = torch.randn((2, rows * length, kv.kv_heads, kv.head_dim), dtype=kv.dtype, device=device)
        query = torch.randn((rows, self._config.num_attention_heads, 1, kv.head_dim), dtype=kv.dtype, device=device)
        starts = [(place + 1) * length - own for place, own in enumerate(lengths)]
        valid = torch.arange(length, device=device) >= length - torch.tensor(lengths, device=device)[:, None]
        mask = prepare_mask(valid[:, None, None], 1, kv.dtype, kv.kv_heads)
        cells = tokens.view(2, rows, length, kv.kv_heads, -1).transpose(2, 3)
        ways = {"mask": partial(attend, query, cells[0], cells[1], mask, None)}
        for name, bound in (("tight", length), ("loose", 32 * length)):
            runs = Runs.listed(starts, lengths, bound, self._attention, device)
            ways[name] = partial(attend, query, tokens[0], tokens[1], runs, None)
        seconds = {name: self._time(capture_on(device)(_repeated(way))) / CALLS for name, way in ways.items()}
        masked, found = ways["mask"](), ways["tight"]()
        error = float((found - masked).norm() / masked.norm())
        return {f"{name}_ms": 1e3 * each for name, each in seconds.items()} | {"error": error}

    def prefill(self, tokens: int) -> Json:
        """Milliseconds of prompts of lengths that no pass had before, and of one length again and again."""

        def read(count: int) -> None:
            Prefill(self._subject.model, self._make_rows([count])).finish(max(tokens, CHUNK_TOKENS))

        new = [self._time(partial(read, tokens - 37 * place), repeats=1, warm=0) for place in range(4)]
        again = self._time(partial(read, tokens), repeats=3, warm=1)
        return {"new_ms": [1e3 * each for each in new], "again_ms": 1e3 * again, "tokens_s": tokens / again}

    def copies(self, length: int) -> Json:
        """Milliseconds in which a row of `length` tokens leaves the batch and comes back."""
        batch = self._fill([length, length], None)
        times = []
        for _ in range(3):
            row, begin = batch.rows[-1], read_clock(self._device, self._clock)
            kv = batch.extract(row)
            middle = read_clock(self._device, self._clock)
            batch.insert(row, RowKv(kv.keys.to(self._device), kv.values.to(self._device)), lasting=False)
            times.append((1e3 * (middle - begin), 1e3 * (read_clock(self._device, self._clock) - middle)))
        return {"out_ms": [out for out, _ in times], "in_ms": [back for _, back in times]}

    def generate(self, rows: int) -> Json:
        """Tokens a second, prefill included, beside transformers' `generate`."""
        plain = make_network(self._config, self._dtype, self._device)

        def draw(number: int) -> list[Job]:
            return draw_jobs(random.Random(number), self._subject.vocab, [(64, 32)] * rows)

        ours, theirs = contest((Lengthwise(self._subject, rows), Generate(plain, rows)), draw, 1)
        if trouble := ours.trouble or theirs.trouble:
            raise RuntimeError(trouble)
        return {"lengthwise": ours.rate, "generate": theirs.rate, "ratio": ours.rate / theirs.rate}

    def _make_rows(self, lengths: Sequence[int]) -> list[Row]:
        jobs = draw_jobs(random.Random(len(lengths)), self._subject.vocab, [(length, 1) for length in lengths])
        specs = [RowSpec(index, job.prompt, _greedy(10**6)) for index, job in enumerate(jobs)]
        return [Row(spec, self._subject.text, frozenset()) for spec in specs]

    def _fill(self, lengths: Sequence[int], way: Way) -> RunningBatch:
        """A batch of rows whose K and V are random."""
        kv = self._subject.model.kv
        batch = _make_batch(self._subject, len(lengths), max(lengths) + SPARE, way, self._attention)
        shape = (2, kv.layers, kv.kv_heads, max(lengths), kv.head_dim)
        keys, values = torch.randn(shape, dtype=kv.dtype, device=kv.device)
        for row, length in zip(self._make_rows(lengths), lengths, strict=True):
            row.accept(Choice(5))
            batch.insert(row, RowKv(keys[:, :, :length], values[:, :, :length]), lasting=False)
        return batch

    def _reserved(self) -> int:
        return torch.cuda.memory_reserved(self._device) if self._device.type == "cuda" else 0

    def _time(self, work: Callable[[], object], repeats: int = 9, warm: int = 2) -> float:
        """Median seconds until the device has done it."""
        seconds = []
        for _ in range(warm + repeats):
            begin = read_clock(self._device, self._clock)
            work()
            seconds.append(read_clock(self._device, self._clock) - begin)
        return statistics.median(seconds[warm:])


def _ragged(rows: int, longest: int) -> list[int]:
    """Lengths from `longest` down to half of it."""
    return [longest - place * longest // (2 * rows) for place in range(rows)]


def _repeated(way: Callable[[], object]) -> Callable[[], None]:
    def body() -> None:
        for _ in range(CALLS):
            way()

    return body


Say: TypeAlias = Callable[[str], None]

LIMIT = 400.0
"""Seconds after which no further part begins."""

MEMORY_SHARE = 0.3
"""Part of the free memory that weights may take: two networks of them, and K and V beside, have to fit."""

DRY = "no CUDA device: a dry run of a tiny network over the reference paths; its times say nothing of a GPU"


def run_gpu(asked: GpuBench) -> int:
    """Measure, print and save; returns the exit code, 1 where a part failed. Raises UserError."""
    require_writable(asked.save_result)
    found = run_first(asked, partial(print, flush=True))
    save_json(asked.save_result, found)
    return int(any("failed" in part for part in found.values()))


@torch.inference_mode()
def run_first(asked: GpuBench, say: Say, clock: Callable[[], float] = time.perf_counter) -> Json:
    """All parts by name, each said as it ends."""
    hush_transformers()
    dry = not torch.cuda.is_available()
    device, dtype = (torch.device("cpu"), torch.float32) if dry else (torch.device("cuda:0"), torch.bfloat16)
    make, layers = (tiny, 2) if dry else (eight_billion, _count_layers(device))
    torch.backends.cuda.enable_cudnn_sdp(False)
    setting = describe_machine(device) | {"dry": dry, "dtype": str(dtype), "layers": layers} | _describe_memory(device)
    found: Json = {"setting": setting}
    say(DRY if dry else f"{setting['device']}: {layers} layers of the 32 of an 8B, random weights in {dtype}")
    begin = clock()

    def attempt(name: str, part: Callable[[], Json]) -> None:
        try:
            found[name] = part() if clock() - begin < LIMIT else {"left out": "no time"}
        except Exception as error:
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
        gc.collect()
        if not dry:
            torch.cuda.empty_cache()
        say(f"{name:16} " + ", ".join(f"{key} {_show(value)}" for key, value in found[name].items()))

    if not dry:
        attempt("tests", run_tests)
    attempt("parity", partial(count_equal, make(min(4, layers)), device))
    attempt("host", partial(measure_host, *((8, 100) if dry else ())))
    parts = Parts(make(layers), dtype, device, clock)
    rows, length = asked.rows or ((1, 4) if dry else (1, 8, 64, 256)), asked.length or (64 if dry else 1024)
    attempt("bounds", lambda: parts.bounds)
    attempt("rounding", parts.rounding)
    attempt("graphs", partial(parts.graphs, max(rows), length))
    for count in rows:
        attempt(f"step {count}", partial(parts.step, count, length))
        attempt(f"attention {count}", partial(parts.attention, count, length))
    for tokens in (512, 2048):
        attempt(f"prefill {tokens}", partial(parts.prefill, tokens))
    attempt("copies", partial(parts.copies, length))
    for count in rows:
        attempt(f"generate {count}", partial(parts.generate, count))
    return found


def _describe_memory(device: torch.device) -> Json:
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"capability": torch.cuda.get_device_capability(device), "free": free, "memory": total}


def _count_layers(device: torch.device) -> int:
    """Layers of an 8B that there is memory for, in 16 bits."""
    sizes = eight_billion(32)
    layer = 2.5 * sizes.hidden_size**2 + 3 * sizes.hidden_size * sizes.intermediate_size
    room = MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] / 2 - 2 * sizes.vocab_size * sizes.hidden_size
    return max(1, min(sizes.num_hidden_layers, int(room / layer)))


def _show(value: object) -> str:
    if isinstance(value, list):
        return "/".join(map(_show, value))
    return format_number(value) if isinstance(value, int | float) else str(value)
