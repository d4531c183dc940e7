"""The decode step in fixed shapes, each captured once as a CUDA graph and replayed with new inputs.

With few rows a GPU waits for Python to launch its kernels; a graph launches all of them at once. A graph has the
addresses and shapes of its capture for ever, so a step is rounded up to a bucket of rows and columns:

              column 0           end       bucket
    row 0     . . p p p p g g g n |  .  .  .  |      'n' written in this step, at a column that is an input
    row 1     p p p p p p g g g n |  .  .  .  |
    dummy     . . . . . . . . . n |  .  .  .  |      a real row of the arena that is not in use; it reads itself alone

On a CPU the same bodies run without capture, which is how the tests exercise them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from engine.kv.arena import KvArena
from models.network.loader import LoadedModel

LEAST_COLUMNS = 256
ROOM = 32
"""Steps that a narrower bucket must hold before the window is moved into it, which costs a copy."""
WARMUPS = 3
TOLERANCE = 1e-3
"""Largest relative difference between what a replay computes and what its body computes."""

Capture: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
"""Makes of a body a function that does the same, faster."""


class GraphError(RuntimeError):
    """A step computes something else when it is replayed."""


class DecodeStep:
    """One bucket: buffers for the inputs, and the body that reads them. A KvStore for the pass that it makes."""

    def __init__(self, model: LoadedModel, arena: KvArena, rows: int, columns: int) -> None:
        device = arena.shape.device
        self.rows, self.columns = rows, columns
        self._model = model
        self._keys = arena.keys[:, :rows, :, :columns]
        self._values = arena.values[:, :rows, :, :columns]
        # One buffer, so that the host's part of the inputs is one copy: tokens, positions, the column to write.
        self._inputs = torch.zeros(2 * rows + 1, dtype=torch.long, device=device)
        self._mask = torch.zeros((rows, 1, 1, columns), dtype=torch.bool, device=device)
        self._select = (torch.arange(rows, device=device), torch.zeros(rows, dtype=torch.long, device=device))
        self._replay: Callable[[], None] = self._body
        self.logits = torch.empty(0)

    def begin_pass(self, rows: int, new: int) -> DecodeStep:
        """The cells of this bucket (a KvStore's verb)."""
        return self

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """K and V of the step, each (rows, kv_heads, 1, head_dim), into the column that the inputs name."""
        column = self._inputs[-1:]
        self._keys[layer].index_copy_(2, column, keys)
        self._values[layer].index_copy_(2, column, values)
        return self._keys[layer], self._values[layer]

    def prepare(self, capture: Capture) -> None:
        """Capture the body, and compare what it computes with what it computed before; raises GraphError."""
        inputs = torch.zeros_like(self._inputs)
        inputs[: self.rows] = torch.arange(1, self.rows + 1) % self._model.vocab_size
        self._fill(inputs, torch.zeros_like(self._mask[:, 0, 0]), live=0, column=0)
        self._body()
        expected = self.logits.clone()
        self._replay = capture(self._body)
        self.logits.zero_()  # else a replay that computes nothing would be found right
        self._replay()
        error = float((self.logits - expected).norm() / expected.norm())
        if not error < TOLERANCE:
            raise GraphError(f"{self.rows} rows x {self.columns} columns differ by {error:.2g} when replayed")

    def run(self, tokens: Sequence[int], positions: Sequence[int], valid: Tensor, column: int) -> Tensor:
        """Logits (live, vocab) of each live row's next token, valid until the next run.

        valid   (rows, columns) boolean: which cells hold a token of their row, the new one's included
        column  where the new tokens' K and V go
        """
        live, spare = len(tokens), [0] * (self.rows - len(tokens))
        inputs = torch.tensor([*tokens, *spare, *positions, *spare, column], pin_memory=self._inputs.is_cuda)
        self._fill(inputs, valid, live, column)
        self._replay()
        return self.logits[:live]

    def release(self) -> None:
        """Let the arena's memory go, and the graph's."""
        self._keys = self._values = self.logits = torch.empty(0)
        self._replay = self._body

    def _fill(self, inputs: Tensor, valid: Tensor, live: int, column: int) -> None:
        self._inputs.copy_(inputs, non_blocking=True)
        self._mask[:, 0, 0].copy_(valid)
        self._mask[live:, 0, 0, column] = True  # what reads nothing at all computes NaN

    def _body(self) -> None:
        tokens, positions = self._inputs[:-1].view(2, self.rows, 1)
        self.logits = self._model.forward(tokens, positions, self._mask, self, self._select)


class DecodeGraphs:
    """Buckets of one view of an arena: rows and columns in powers of two."""

    def __init__(self, model: LoadedModel, arena: KvArena) -> None:
        self._arena = arena
        self._view = _view(arena)
        most_rows, most_columns = arena.rows, min(arena.pitch, model.context_length)
        self._steps = [
            DecodeStep(model, arena, rows, columns)
            for columns in _doubling(LEAST_COLUMNS, most_columns)
            for rows in _doubling(1, most_rows)
        ]

    def __len__(self) -> int:
        return len(self._steps)

    @torch.inference_mode()
    def prepare(self, advance: Callable[[], None], capture: Capture | None = None) -> None:
        """Capture every bucket, one after another, the largest first, since they share memory; raises GraphError.

        Only while no row is live: each step is run, and writes to the arena.
        """
        assert self._arena.live == 0
        how = capture or _capture_on(self._arena.shape.device)
        for step in reversed(self._steps):
            step.prepare(how)
            advance()

    def release(self) -> None:
        """Forget all buckets, whose views of the arena would keep its memory from being given back."""
        for step in self._steps:
            step.release()
        self._steps = []

    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor | None:
        """Logits (live, vocab) of the arena's newest column; None when no bucket holds the step.

        That is so once the arena looks at its memory in other proportions than when the buckets were made. The window
        slides to the front where a narrower bucket then holds it for some steps: a bucket is read to its last column.
        """
        arena = self._arena
        if _view(arena) != self._view:
            return None
        if self._width(arena.window + ROOM) < self._width(arena.end):
            arena.slide()
        for bucket in self._steps:
            if bucket.rows >= arena.live and bucket.columns >= arena.end:
                valid = arena.valid[: bucket.rows, : bucket.columns]
                return bucket.run(tokens, positions, valid, arena.end - 1)
        return None

    def _width(self, columns: int) -> float:
        """Columns of the narrowest buckets that hold so many; infinity where none does."""
        return min((step.columns for step in self._steps if step.columns >= columns), default=math.inf)


def _view(arena: KvArena) -> tuple[int, int, int]:
    """Rows, columns between two rows, and address of an arena: fixed in a graph that was captured on it."""
    return arena.rows, arena.pitch, arena.keys.data_ptr()


def _doubling(first: int, last: int) -> list[int]:
    """first, twice that and so on, and last."""
    sizes = [min(first, last)]
    while sizes[-1] < last:
        sizes.append(min(2 * sizes[-1], last))
    return sizes


def _capture_on(device: torch.device) -> Capture:
    if device.type != "cuda":
        return lambda body: body
    pool = torch.cuda.graph_pool_handle()
    # Without a stream of this device, `torch.cuda.graph` would capture on one of the first device: nothing at all.
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(body: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(device):
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for _ in range(WARMUPS):
                    body()
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                body()
        return graph.replay

    return capture
