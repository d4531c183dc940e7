"""The decode step in fixed shapes, each captured once as a CUDA graph and replayed with new inputs.

With few rows a GPU waits for Python to launch its kernels; a graph launches all of them at once. A graph has the
addresses and shapes of its capture for ever, so a step is rounded up to a bucket of rows; which tokens of K and V a row
reads, and where it writes, are inputs:

    K and V by token   . . p p p p g g n . | p p p p p p g g n . | . . .  nobody's
    row 0                  start, length
    row 1                                    start, length
    spare row                                                             start, length 1: it reads itself alone

So a graph holds in whatever proportions the arena looks at its memory, and until that memory moves; then it is captured
anew at its next step. On a CPU the same bodies run without capture, which is how the tests exercise them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from engine.kv.arena import KvArena
from models.network.attention import Runs, VarlenAttention, flash_attention
from models.network.decoder.decoder import Decoder
from models.network.loader import LoadedModel

WARMUPS = 3
TOLERANCE = 1e-3
"""Largest relative difference between what a replay computes and what its body computes."""

FEW_HEADS = 128
"""Rows times K heads up to which flash attention cuts rows into parts, so that all multiprocessors have some."""

LENGTHS = 8192
"""It cuts by the length that a row may have at most, not by what it has: there are buckets for rows of up to this
length, eight times as much, and so on. One bound of 128k would leave a row of 4,000 tokens to 8 blocks in place of 128.
"""

log = logging.getLogger(__name__)

Capture: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
"""Makes of a body a function that does the same, faster."""


class DecodeStep:
    """One bucket: buffers for the inputs, and the body that reads them. A KvStore for the pass that it makes."""

    def __init__(self, model: LoadedModel, arena: KvArena, rows: int, longest: int, attention: VarlenAttention) -> None:
        """longest   bound of the tokens of a row, the new one included"""
        device = arena.shape.device
        self.rows, self.longest = rows, longest
        self._model, self._arena, self._attention = model, arena, attention
        # One buffer, so that the inputs are one copy: tokens, positions, lengths, starts, and one number more.
        self._inputs = torch.zeros(4 * rows + 1, dtype=torch.long, device=device)
        self._places = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._select = (torch.arange(rows, device=device), torch.zeros(rows, dtype=torch.long, device=device))
        self._replay: Callable[[], None] | None = None
        self.release()

    def begin_pass(self, rows: int, new: int) -> DecodeStep:
        """The cells of this bucket (a KvStore's verb)."""
        return self

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """K and V of the step, each (rows, kv_heads, 1, head_dim), to the ends of the runs; returns all tokens'."""
        self._keys[layer].index_copy_(0, self._ends, keys.squeeze(2))
        self._values[layer].index_copy_(0, self._ends, values.squeeze(2))
        return self._keys[layer], self._values[layer]

    def run(
        self,
        capture: Capture,
        tokens: Sequence[int] = (),
        positions: Sequence[int] = (),
        lengths: Sequence[int] = (),
        starts: Sequence[int] = (),
        fed: Tensor | None = None,
    ) -> Tensor:
        """Logits (live, vocab) of each live row's next token, valid until the next run.

        capture  for the first run since the arena's memory moved
        lengths  tokens of each row, the new one included
        starts   the first of them in the arena's `tokens`
        fed      (live,), in place of the tokens, where the host has not read them all
        """
        live = len(tokens)
        spare, nobody = self.rows - live, self._arena.capacity_tokens
        given = ((tokens, 0), (positions, 0), (lengths, 1), (starts, nobody))
        inputs = [number for numbers, rest in given for number in (*numbers, *[rest] * spare)]
        self._inputs.copy_(torch.tensor([*inputs, 0], pin_memory=self._inputs.is_cuda), non_blocking=True)
        if fed is not None:
            self._inputs[:live] = fed
        if self._replay is None:
            self._replay = self._prepare(capture)
        self._replay()
        return self.logits[:live]

    def release(self) -> None:
        """Let the arena's memory go, and the graph's."""
        self._keys = self._values = self._ends = self.logits = torch.empty(0)
        self._replay = None

    def _prepare(self, capture: Capture) -> Callable[[], None]:
        """The replay of the body, compared with it on the inputs that are there; the body itself if that fails.

        A body may run several times: it writes the same K and V to the same cells.
        """
        self._keys, self._values = self._arena.tokens
        try:
            self._body()
            expected = self.logits.clone()
            replay = capture(self._body)
            self.logits.fill_(torch.nan)  # else a replay that computes nothing would be found right
            replay()
            error, size = (float(each.norm()) for each in (self.logits - expected, expected))
            if not error <= TOLERANCE * size:
                raise RuntimeError(f"its replay differs by {error:.2g} from {size:.2g}")
        except RuntimeError as error:
            log.warning("steps of %d rows run without a CUDA graph, which costs speed: %s", self.rows, error)
            return self._body
        return replay

    def _body(self) -> None:
        rows = self.rows
        tokens, positions, lengths, starts = self._inputs[:-1].view(4, rows)
        bounds = self._inputs[2 * rows :].int()
        self._ends = starts + lengths - 1
        runs = Runs(bounds[rows:], bounds[:rows], self._places, self.longest, self._attention)
        self.logits = self._model.forward(tokens[:, None], positions[:, None], runs, self, self._select)


def capture_nothing(_: torch.device) -> Capture:
    """Run bodies as they are."""
    return lambda body: body


def capture_on(device: torch.device) -> Capture:
    """Capture as CUDA graphs that share memory, on a CUDA device."""
    if device.type != "cuda":
        return capture_nothing(device)
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
            # Other executors' threads may take memory meanwhile.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                body()
        return graph.replay

    return capture


class DecodeGraphs:
    """Buckets of an arena: rows in powers of two."""

    def __init__(
        self,
        model: LoadedModel,
        arena: KvArena,
        attention: VarlenAttention = flash_attention,
        capture: Callable[[torch.device], Capture] = capture_on,
    ) -> None:
        """capture   asked anew whenever the arena's memory moves: graphs that are gone leave their pool unusable"""
        self._arena, self._capture_on = arena, capture
        self._capture = capture(arena.shape.device)
        most = min(arena.capacity_tokens, model.context_length)
        self._steps = [
            DecodeStep(model, arena, rows, longest, attention)
            for rows in _ladder(1, 2, arena.max_rows)
            for longest in (_ladder(LENGTHS, 8, most) if rows * model.kv.kv_heads <= FEW_HEADS else (most,))
        ]

    def __len__(self) -> int:
        return len(self._steps)

    @torch.inference_mode()
    def prepare(self, advance: Callable[[], None] = lambda: None) -> None:
        """Capture every bucket, one after another, the largest first, since they share memory."""
        for step in reversed(self._steps):
            step.run(self._capture)
            advance()

    def release(self) -> None:
        """Forget all graphs, whose views of the arena would keep its memory from being given back."""
        for step in self._steps:
            step.release()
        self._capture = self._capture_on(self._arena.shape.device)

    def step(self, tokens: Sequence[int], positions: Sequence[int], fed: Tensor | None = None) -> Tensor | None:
        """Logits (live, vocab) of the arena's newest column; None where rows have holes, or no bucket holds them."""
        arena = self._arena
        if arena.has_holes:
            return None
        longest = max(arena.lengths)
        for bucket in self._steps:
            if bucket.rows >= arena.live and bucket.longest >= longest:
                return bucket.run(self._capture, tokens, positions, arena.lengths, arena.starts(), fed)
        return None


def _ladder(first: int, factor: int, last: int) -> list[int]:
    """first, `factor` times that and so on, and last."""
    sizes = [min(first, last)]
    while sizes[-1] < last:
        sizes.append(min(factor * sizes[-1], last))
    return sizes


def graphs_for(
    model: LoadedModel, arena: KvArena, capture: Callable[[torch.device], Capture] = capture_on
) -> DecodeGraphs | None:
    """The decode steps of an arena that flash attention reads; None where attention goes by a mask."""
    if not (arena.by_token and isinstance(model.network, Decoder)):
        return None
    return DecodeGraphs(model, arena, capture=capture)
