"""Asks a network, before it serves anybody, whether it computes through the arena what it computes without one.

Architectures differ in how they treat positions, masks and caches. One that ignores what the engine passes in
would answer fluently and wrongly; this finds it at start, and warms the kernels up besides.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.forward.batch import RunningBatch
from engine.forward.prefill import Prefill
from engine.kv.arena import KvArena
from engine.messages import RowSpec, SamplingParams
from engine.row import Choice, Row
from models.network.loader import LoadedModel, LoadError
from models.text import Text

PROMPT = tuple(range(10, 22))
TOLERANCE = 0.05
"""Largest relative error of a logit vector; rounding in bfloat16 stays well below, a wrong mask well above."""


@torch.inference_mode()
def probe(model: LoadedModel, text: Text) -> None:
    """Compare a chunked prefill of ragged rows and a decode step with one plain pass; raises LoadError."""
    name = type(model.network).__name__
    try:
        errors = _errors(model, text)
    except Exception as error:
        raise LoadError(f"{name} does not run on this server's cache, so it is not supported: {error}") from error
    if not all(error < TOLERANCE for error in errors):
        raise LoadError(
            f"{name} does not compute the same through this server's cache as without it "
            f"(relative error {max(errors):.2g}): this architecture is not supported"
        )


def _errors(model: LoadedModel, text: Text) -> list[float]:
    """Relative error of the logits of each row's second token."""
    rows = [_row(row_id, text, PROMPT[4 * row_id :]) for row_id in range(3)]  # ragged enough for the mask to matter
    batch = RunningBatch(model, KvArena(model.kv, 64 * len(rows), max_rows=len(rows)))
    group = Prefill(model, rows)
    while group.rows:
        for done in group.advance(max_tokens=len(rows) * 8):
            done.row.accept(Choice(int(done.logits.argmax())))
            batch.insert(done.row, done.kv)
    stepped = zip(batch.rows, batch.step(), strict=True)
    return [_relative_error(logits, _plain(model, row)) for row, logits in stepped]


def _row(row_id: int, text: Text, prompt: tuple[int, ...]) -> Row:
    return Row(RowSpec(row_id, prompt, SamplingParams(max_tokens=8, ignore_eos=True)), text, frozenset())


def _plain(model: LoadedModel, row: Row) -> Tensor:
    return model.network.read(torch.tensor([[*row.prompt, *row.generated]], device=model.device))[0, -1]


def _relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
