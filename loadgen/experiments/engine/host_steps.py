"""A step's CPU time in the executor's thread, in microseconds by part, under a network that costs nothing; prints JSON.
It runs by its path on any checkout: `PYTHONPATH=CHECKOUT python -P host_steps.py ROWS...`.
"""

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from engine.forward import decode
from engine.forward.batch import RunningBatch
from engine.forward.graphs import DecodeGraphs, capture_nothing
from engine.kv.arena import KvArena
from engine.lifecycle import Lifecycle
from engine.messages import RowSpec
from engine.sampling import sampler
from engine.sampling.params import SamplingParams
from engine.torch_device import TorchDevice
from loadgen.experiments.engine.setup import random_subject, tiny
from models.network.attention import gather_attention
from models.network.loader import LoadedModel

STEPS = 60  # measured; as many as fit with the first into the rows' columns
WARM = 10
LOGITS = 64  # few, as arithmetic is the device's
SAMPLED = {"greedy": 0.0, "sampled": 0.8}  # temperature
PARTS = {
    "inputs": (RunningBatch, "step"),
    "sampling": (sampler, "Chosen"),
    "tokens": (sampler.Chosen, "read"),
    "rows": (decode, "accept"),
}


@contextmanager
def timing(spent: dict[str, float]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, (owner, attribute) in PARTS.items():
            stack.enter_context(mock.patch.object(owner, attribute, _timed(getattr(owner, attribute), name, spent)))
        yield


def _timed(work: Any, name: str, spent: dict[str, float]) -> Any:
    def timed(*args: Any, **more: Any) -> Any:
        begin = time.thread_time()
        try:
            return work(*args, **more)
        finally:
            spent[name] += time.thread_time() - begin

    return timed


def make_lifecycle(rows: int) -> Lifecycle[Any]:
    subject = random_subject(tiny(1), torch.float32, torch.device("cpu"))
    logits = torch.randn(max(rows, 8), LOGITS)

    def compute(model: LoadedModel, tokens: Tensor, positions: Tensor, mask: Any, store: Any, select: Any) -> Tensor:
        return logits[: len(tokens) if select is None else len(select[0])].clone()

    mock.patch.object(LoadedModel, "forward", compute).start()
    arena = KvArena(subject.model.kv, 2 * rows * (STEPS + WARM + 60), max_rows=rows, by_token=True)
    graphs = DecodeGraphs(subject.model, arena, gather_attention, capture_nothing)
    batch = RunningBatch(subject.model, arena, graphs=graphs)
    return Lifecycle(TorchDevice(subject.model, subject.text, batch, max_prefill_tokens=4096, ahead=True))


def measure_steps(rows: int, temperature: float) -> dict[str, float]:
    """Medians over steps; `all` has what no part has."""
    lifecycle, spent = make_lifecycle(rows), defaultdict[str, float](float)
    sampling = [SamplingParams(10**6, temperature, seed=seed) for seed in range(rows)]
    lifecycle.table.admit([RowSpec(place, (65 + place % 26,) * 8, each) for place, each in enumerate(sampling)])
    while len(lifecycle.device.batch.rows) < rows:
        lifecycle.turn()
    steps = list[dict[str, float]]()
    with timing(spent):
        for _ in range(WARM + STEPS):
            spent.clear()
            begin = time.thread_time()
            lifecycle.turn()
            report = lifecycle.table.report(0, 1, 0.0)
            spent["all"] = time.thread_time() - begin
            if len(report.updates) != rows:
                raise RuntimeError(f"{len(report.updates)} of {rows} rows have a token")
            steps.append(dict(spent))
    return {part: 1e6 * statistics.median(step.get(part, 0.0) for step in steps[WARM:]) for part in ("all", *PARTS)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode():
        measured = {
            f"{rows} {kind}": measure_steps(rows, temperature)
            for rows in map(int, sys.argv[1:])
            for kind, temperature in SAMPLED.items()
        }
    print(json.dumps(measured))
