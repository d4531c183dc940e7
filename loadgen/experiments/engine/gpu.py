"""Carries out `lengthwise bench gpu`: what a person with a bare GPU machine runs once, and sends back the file of.

Parts fail one by one: an error is a result too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch

from loadgen.console import format_number
from loadgen.experiments.engine.gpu_parts import Json, Parts, count_equal, run_tests
from loadgen.experiments.engine.host import measure_host
from loadgen.experiments.engine.options import GpuBench
from loadgen.experiments.engine.setup import describe_machine, eight_billion, hush, tiny

Say: TypeAlias = Callable[[str], None]

LIMIT = 400.0
"""Seconds after which no further part begins."""

MEMORY_SHARE = 0.3
"""Part of the free memory that weights may take: two networks of them, and K and V beside, have to fit."""

DRY = "no CUDA device: a dry run of a tiny network over the reference paths; its times say nothing of a GPU"


@torch.inference_mode()
def run_first(asked: GpuBench, say: Say, clock: Callable[[], float] = time.perf_counter) -> Json:
    """All parts by name, each said as it ends."""
    hush()
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
