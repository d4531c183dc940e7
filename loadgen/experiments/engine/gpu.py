"""`lengthwise bench gpu`: errors are results. On a CPU gathering attention and uncaptured steps stand in."""

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
from tempfile import TemporaryDirectory

import torch
from transformers import LlamaConfig

from engine.forward.batch import RunningBatch
from engine.forward.graphs import Capture, DecodeGraphs, capture_nothing, capture_on
from engine.forward.prefill import Prefill
from engine.kv.arena import KvArena
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.measure.profiler import read_clock
from engine.messages import RowId, RowSpec
from engine.row import Choice, Row
from engine.torch_device import TorchDevice
from loadgen.console import format_number
from loadgen.experiments.engine import setup
from loadgen.experiments.engine.bench import OURS, THEIRS, Json, Lengthwise, Run, Shape, contest, draw_rows, generate
from loadgen.experiments.engine.host import ROOT, measure_host, save_tokenizer, serve_streams
from loadgen.experiments.options import GpuBench
from loadgen.result_file import require_writable, save_json
from models.network.attention import flash_attention, gather_attention, has_flash
from server.composition.devices import hush_transformers

TESTS = ROOT / "tests/engine/forward/test_cuda.py"


def run_tests() -> Json:
    """Those marked `gpu`; of other versions' warnings none is an error."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-o", "addopts=", "-W", "default", "-m", "gpu", str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    return {"exit code": done.returncode, "end": done.stdout[-600:]}


def serve_random(config: LlamaConfig, dtype: torch.dtype, device: torch.device, counts: Sequence[int]) -> Json:
    """Over HTTP, by number of streams with prompts of 64 tokens."""
    with TemporaryDirectory() as folder:
        setup.make_network(config, dtype, device).save_pretrained(folder)
        save_tokenizer(Path(folder), config.vocab_size)
        gc.collect()
        torch.cuda.empty_cache()
        found = serve_streams([folder, "--device", device.type], counts, 300, "a" * 64)
    shown = ("first_ms", "tokens_s", "step_ms", "server_us", "loop_us")
    return {f"{count} {name}": one[name] for count, one in zip(counts, found, strict=True) for name in shown}


Way = Callable[[torch.device], Capture] | None  # a decode step's capture; None: under a mask, as with holes

WAYS: Mapping[str, Way] = {"graph": capture_on, "eager": capture_nothing, "mask": None}

SPARE = 64  # columns by which a measured batch may grow


class GpuParts:
    def __init__(self, config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.device, self.subject = device, setup.random_subject(config, dtype, device)
        self.model = self.subject.model
        self.varlen = flash_attention if has_flash(dtype, self.model.kv.head_dim, device) else gather_attention

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
                device = TorchDevice(self.model, self.subject.text, batch, max_prefill_tokens=setup.CHUNK_TOKENS)
                turn = self._time(partial(device.step, 1))
                del device
                found |= {"turn_ms": 1e3 * turn, "host_share": 1 - seconds / turn}
            del batch
            gc.collect()  # a step and its body form a cycle, and the next batch needs the memory
        return found

    def prefill(self, tokens: int) -> Json:
        """Milliseconds of prompts of new lengths, and of one length repeated."""

        def read(count: int) -> None:
            Prefill(self.model, self._make_rows([count])).finish(max(tokens, setup.CHUNK_TOKENS))

        new = [self._time(partial(read, tokens - 37 * place), repeats=1, warm=0) for place in range(4)]
        again = self._time(partial(read, tokens), repeats=3, warm=1)
        return {"new_ms": [1e3 * each for each in new], "again_ms": 1e3 * again, "tokens_s": tokens / again}

    def copies(self, length: int) -> Json:
        batch, times = self._fill([length, length], None), []
        for _ in range(3):
            row, begin = batch.rows[-1], read_clock(self.device)
            kv = batch.extract(row)
            middle = read_clock(self.device)
            batch.insert(row, RowKv(kv.keys.to(self.device), kv.values.to(self.device)), lasting=False)
            times.append((1e3 * (middle - begin), 1e3 * (read_clock(self.device) - middle)))
        return {"out_ms": [out for out, _ in times], "in_ms": [back for _, back in times]}

    def generate(self, rows: int) -> Json:
        plain = partial(generate, self.subject.load_plain())
        engines: dict[str, Run] = {OURS: Lengthwise(self.subject).run, THEIRS: plain}
        ours, theirs = contest(engines, partial(self._draw, [(64, 32)] * rows), 1).values()
        if trouble := ours.trouble or theirs.trouble:
            raise RuntimeError(trouble)
        return {OURS: ours.rate, THEIRS: theirs.rate, "ratio": ours.rate / theirs.rate}

    def _draw(self, shapes: Sequence[Shape], seed: int = 0) -> list[RowSpec]:
        return draw_rows(random.Random(seed), self.subject.vocab, shapes)

    def _make_rows(self, lengths: Sequence[int]) -> list[Row]:
        specs = self._draw([(length, 10**6) for length in lengths], len(lengths))
        return [Row(spec, self.subject.text, frozenset()) for spec in specs]

    def _make_batch(self, rows: int, columns: int, way: Way) -> RunningBatch:
        arena = KvArena(self.model.kv, rows * columns, max_rows=rows, by_token=True)
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
        seconds = []
        for _ in range(warm + repeats):
            begin = read_clock(self.device)
            work()
            seconds.append(read_clock(self.device) - begin)
        return statistics.median(seconds[warm:])


LIMIT = 400.0  # seconds after which no part begins

MEMORY_SHARE = 0.3  # of free memory for weights: two networks and KV must fit

DRY = "no CUDA device: a dry run of a tiny network over the reference paths; its times say nothing of a GPU"


@torch.inference_mode()
def run_gpu(asked: GpuBench) -> int:
    """Saves what ended; the exit code is 1 where a part failed. Raises UserError."""
    require_writable(asked.save_result)
    hush_transformers()
    dry = not torch.cuda.is_available()
    device, dtype = (torch.device("cpu"), torch.float32) if dry else (torch.device("cuda:0"), torch.bfloat16)
    make, layers = (setup.tiny, 2) if dry else (setup.llama_8b, _count_layers(device))
    torch.backends.cuda.enable_cudnn_sdp(False)
    setting = setup.describe_device(device) | {"dry": dry, "dtype": str(dtype), "layers": layers}
    found: Json = {"setting": setting}
    told = DRY if dry else f"{setting['device']}: {layers} layers of the 32 of an 8B, random weights in {dtype}"
    print(told, flush=True)
    begin = time.perf_counter()

    def attempt(name: str, part: Callable[[], Json]) -> None:
        try:
            found[name] = part() if time.perf_counter() - begin < LIMIT else {"left out": "no time"}
        except Exception as error:
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
        gc.collect()
        torch.cuda.empty_cache()
        figures = ", ".join(f"{key} {_show(value)}" for key, value in found[name].items())
        print(f"{name:16} {figures}", flush=True)

    if not dry:
        attempt("tests", run_tests)
    attempt("parity", lambda: GpuParts(make(min(4, layers)), torch.float32, device).parity())
    attempt("host", partial(measure_host, *((8, 100) if dry else ())))
    streams = (1, 4) if dry else (1, 8, 64, 256)
    attempt("http 1B", lambda: serve_random(make(2) if dry else setup.llama_1b(16), dtype, device, streams))
    if not dry:
        attempt("http 8B", lambda: serve_random(setup.llama_8b(layers), dtype, device, streams))
    parts = GpuParts(make(layers), dtype, device)
    rows, length = asked.rows or ((1, 4) if dry else (1, 8, 64, 256)), asked.length or (64 if dry else 1024)
    attempt("bounds", lambda: asdict(parts.subject.floor))
    for count in rows:
        attempt(f"step {count}", partial(parts.step, count, length))
    for tokens in (512, 2048):
        attempt(f"prefill {tokens}", partial(parts.prefill, tokens))
    attempt("copies", partial(parts.copies, length))
    for count in rows:
        attempt(f"generate {count}", partial(parts.generate, count))
    save_json(asked.save_result, found)
    return int(any("failed" in part for part in found.values()))


def _count_layers(device: torch.device) -> int:
    """Layers of an 8B that fit, in 16 bits."""
    sizes = setup.llama_8b(32)
    layer = 2.5 * sizes.hidden_size**2 + 3 * sizes.hidden_size * sizes.intermediate_size
    room = MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] / 2 - 2 * sizes.vocab_size * sizes.hidden_size
    return max(1, min(sizes.num_hidden_layers, int(room / layer)))


def _show(value: object) -> str:
    if isinstance(value, list):
        return "/".join(map(_show, value))
    return format_number(value) if isinstance(value, int | float) else str(value)
