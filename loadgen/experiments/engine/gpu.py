"""`lengthwise bench gpu`: errors are results. On a CPU gathering attention and uncaptured steps stand in."""

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import LlamaConfig

from loadgen.console import format_number
from loadgen.experiments.engine import setup
from loadgen.experiments.engine.bench import Json
from loadgen.experiments.engine.gpu_parts import GpuParts
from loadgen.experiments.engine.host import ROOT, measure_host, save_tokenizer, serve_streams
from loadgen.experiments.options import GpuBench
from loadgen.result_file import require_writable, save_json
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
    attempt("graphs", partial(parts.graphs, max(rows), length))
    for count in rows:
        attempt(f"step {count}", partial(parts.step, count, length))
    for tokens in (512, 2048):
        attempt(f"prefill {tokens}", partial(parts.prefill, tokens))
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
