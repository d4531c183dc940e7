"""Decode steps in fixed shapes, captured as CUDA graphs: one launch. Rows are rounded up to a bucket; cells are
inputs:

    KV by token   ..ppppggn. | ppppppggn. | ...  nobody's
    row 0         start, length
    row 1                      start, length
    spare row                                start, length 1: reads itself

A graph is valid until the arena's memory moves. On a CPU the bodies run uncaptured, for tests.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Self, TypeAlias

import torch
from torch import Tensor

from engine.kv.arena import KvArena
from engine.transfer import Staging, send
from models.network.attention import Runs, VarlenAttention, flash_attention
from models.network.decoder.decoder import Decoder
from models.network.loader import LoadedModel

WARMUPS = 3
TOLERANCE = 1e-3  # relative, of replay and body

FEW_HEADS = 128  # rows x KV heads at which flash attention splits rows

LENGTHS = 1024  # first bucket of longest rows, as splitting depends on it: 8,192 cost 8 short rows 0.5 ms; times 8 each

log = logging.getLogger(__name__)

Capture: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]  # makes a body faster


class DecodeStep:
    """One bucket; its own KvStore."""

    def __init__(self, model: LoadedModel, arena: KvArena, rows: int, longest: int, attention: VarlenAttention) -> None:
        """`longest`, new token included."""
        device = arena.shape.device
        self.rows, self.longest = rows, longest
        self._model, self._arena, self._attention = model, arena, attention
        # one buffer for one copy: tokens, lengths, starts
        self._inputs = torch.zeros(3 * rows + 1, dtype=torch.long, device=device)
        self._staging = Staging(self._inputs)
        self._written: tuple[int, int, int] | None = None  # rows, the arena's layout and end that the inputs are of
        self._places = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._select = (torch.arange(rows, device=device), torch.zeros(rows, dtype=torch.long, device=device))
        self._replay: Callable[[], None] | None = None
        self.release()

    def begin_pass(self, rows: int, new: int) -> Self:
        return self

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Each (rows, kv_heads, 1, head_dim); returns all tokens'."""
        self._keys[layer].index_copy_(0, self._ends, keys.squeeze(2))
        self._values[layer].index_copy_(0, self._ends, values.squeeze(2))
        return self._keys[layer], self._values[layer]

    def run(self, capture: Capture, tokens: Sequence[int] | Tensor = ()) -> Tensor:
        """Logits (live, vocab) behind each live row's newest token, valid until the next run. Lengths are advanced on
        the device while rows stay.
        """
        live, arena, written = len(tokens), self._arena, self._written
        self._written = None
        if written == (live, arena.layout, arena.end - 1):
            self._inputs[self.rows : self.rows + live] += 1
            self._inputs[:live] = tokens if isinstance(tokens, Tensor) else send(tokens, self._inputs.device)
        else:
            self._write(live, tokens)
        if self._replay is None:
            self._replay = self._prepare(capture)
        self._replay()
        self._written = live, arena.layout, arena.end
        return self.logits[:live]

    def _write(self, live: int, tokens: Sequence[int] | Tensor) -> None:
        given, lengths, starts = self._staging.edit()[:-1].reshape(3, self.rows)  # views
        given[:], lengths[live:], starts[live:] = 0, 1, self._arena.capacity_tokens  # spare rows are nobody's
        lengths[:live], starts[:live] = self._arena.lengths[:live], self._arena.starts()[:live]
        if not isinstance(tokens, Tensor):
            given[:live] = tokens
        self._staging.send()
        if isinstance(tokens, Tensor):
            self._inputs[:live] = tokens

    def release(self) -> None:
        self._keys = self._values = self._ends = self.logits = torch.empty(0)
        self._replay = None

    def _prepare(self, capture: Capture) -> Callable[[], None]:
        self._keys, self._values = self._arena.tokens
        try:
            self._body()
            expected = self.logits.clone()
            replay = capture(self._body)
            self.logits.fill_(torch.nan)  # else a void replay would pass
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
        tokens, lengths, starts = self._inputs[:-1].view(3, rows)
        positions = (lengths - 1).clamp(max=self._model.context_length - 1)  # ended rows may outgrow the context
        bounds = self._inputs[rows:].int()
        self._ends = starts + lengths - 1
        runs = Runs(bounds[rows:], bounds[:rows], self._places, self.longest, self._attention)
        self.logits = self._model.forward(tokens[:, None], positions[:, None], runs, self, self._select)


def capture_nothing(_: torch.device) -> Capture:
    return lambda body: body


def capture_on(device: torch.device) -> Capture:
    """In one memory pool; uncaptured elsewhere."""
    if device.type != "cuda":
        return capture_nothing(device)
    pool = torch.cuda.graph_pool_handle()
    # else captured on the first device
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(body: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(device):
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for _ in range(WARMUPS):
                    body()
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # other threads may allocate
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                body()
        return graph.replay

    return capture


class DecodeGraphs:
    """Powers of two."""

    def __init__(
        self,
        model: LoadedModel,
        arena: KvArena,
        attention: VarlenAttention = flash_attention,
        capture: Callable[[torch.device], Capture] = capture_on,
    ) -> None:
        """`capture` is renewed whenever the arena moves."""
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
        """Largest first, as they share memory."""
        for step in reversed(self._steps):
            step.run(self._capture)
            advance()

    def release(self) -> None:
        for step in self._steps:
            step.release()
        self._capture = self._capture_on(self._arena.shape.device)

    def step(self, tokens: Sequence[int] | Tensor) -> Tensor | None:
        """Logits (live, vocab); None with holes or without a bucket."""
        arena = self._arena
        if arena.has_holes:
            return None
        for bucket in self._steps:
            if bucket.rows >= arena.live and bucket.longest >= arena.window:
                return bucket.run(self._capture, tokens)
        return None


def _ladder(first: int, factor: int, last: int) -> list[int]:
    sizes = [min(first, last)]
    while sizes[-1] < last:
        sizes.append(min(factor * sizes[-1], last))
    return sizes


def graphs_for(
    model: LoadedModel, arena: KvArena, capture: Callable[[torch.device], Capture] = capture_on
) -> DecodeGraphs | None:
    if not (arena.by_token and isinstance(model.network, Decoder)):
        return None
    return DecodeGraphs(model, arena, capture=capture)
