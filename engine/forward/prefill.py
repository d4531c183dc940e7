"""Prefill of similar prompts, chunk by chunk:

             0   a    b     width
    row 0    pppPPPPPppp|       'P' the chunk [a, b)
    row 1    pppPPPP....|       '.' padding behind, hidden by causal attention
    row 2    pp.........|       done: left out

Longest rows first. Common cached prefixes are copied; chunks end at the cache's blocks.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.kv.device_blocks import DeviceBlocks
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.messages import RowId, StepStats
from engine.row import Row
from engine.sampling.sampler import score, token_logprobs
from engine.transfer import send
from models.network.kv_store import KvCells
from models.network.loader import LoadedModel

GRAIN = 64  # columns: a length never seen takes a GPU 30 to 85 ms where one that was takes 21

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prefilled:
    """KV cache, and logits (vocab,) of the first token."""

    row: Row
    kv: RowKv
    logits: Tensor


class Prefill:
    def __init__(
        self,
        model: LoadedModel,
        rows: Iterable[Row],
        prefixes: PrefixCache[RowKv] | None = None,
        blocks: DeviceBlocks | None = None,
        grain: int | None = None,
    ) -> None:
        """Without `prefixes`, chunks end anywhere. `blocks`: the prefix cache's on the device. Passes have whole
        `grain`s of columns; None: GRAIN on CUDA, 1 elsewhere.
        """
        self._model = model
        self._grain = grain or (GRAIN if model.device.type == "cuda" else 1)
        self._prefixes = PrefixCache[RowKv](0, chunk=1) if prefixes is None else prefixes
        self._blocks = DeviceBlocks(model.device, 0) if blocks is None else blocks
        self.rows: list[Row] = sorted(rows, key=lambda row: -row.length)
        for row in self.rows:
            row.prompt_logprobs = None  # recomputed
        self.tally = StepStats()
        self._contexts = [row.tokens for row in self.rows]
        self._ended: list[Prefilled] = []
        kv, count = model.kv, len(self.rows)
        columns = _round_up(len(self._contexts[0]), self._grain)
        layout = (kv.layers, count, kv.kv_heads, columns, kv.head_dim)
        self._keys, self._values = (torch.zeros(layout, dtype=kv.dtype, device=kv.device) for _ in ("keys", "values"))
        self._done = self._copy_prefixes()  # columns computed
        self._copied = self._done * count  # tokens not yet tallied

    def _copy_prefixes(self) -> int:
        contexts = zip(self.rows, self._contexts, strict=True)
        asked = [(() if row.scores_prompt else tokens, row.cache_scope) for row, tokens in contexts]
        found = self._prefixes.find(asked, max((row.group.terms.kept_from for row in self.rows), default=0))
        chunk, shared = self._prefixes.chunk, len(found[0])
        for place, (row, blocks) in enumerate(zip(self.rows, found, strict=True)):
            row.cached_prompt = chunk * shared
            for index, block in enumerate(blocks):
                there, columns = self._blocks.read(block), slice(chunk * index, chunk * (index + 1))
                self._keys[:, place, :, columns], self._values[:, place, :, columns] = there.keys, there.values
        return chunk * shared

    def advance(self, max_tokens: int) -> list[Prefilled]:
        self.launch(max_tokens)
        return self.collect()

    def finish(self, max_tokens: int) -> list[Prefilled]:
        ended: list[Prefilled] = []
        while self.rows:
            ended = self.advance(max_tokens) + ended
        return ended

    def launch(self, max_tokens: int) -> None:
        """At most `max_tokens`, at least a block of columns; asynchronous on CUDA without prompt log-probabilities."""
        begin = self._done
        lengths = [len(context) for context in self._contexts]
        chunk = self._prefixes.chunk
        end = min(begin + max(chunk, max_tokens // len(self.rows) // chunk * chunk), lengths[0])
        wanted = [
            range(begin if row.scores_prompt else max(begin, length - 1), min(end, length))
            for row, length in zip(self.rows, lengths, strict=True)
        ]
        self._begin, self._done = begin, end
        logits = torch.split(self._forward(begin, end, wanted), [len(columns) for columns in wanted])
        for row, columns, lines in zip(self.rows, wanted, logits, strict=True):
            self._note_prompt(row, columns, lines)
        read = sum(min(length, end) - begin for length in lengths)
        self.tally = StepStats(prompt=read, pad=len(lengths) * self._width - read, cached=self._copied)
        self._copied = 0
        ended = range(sum(length > end for length in lengths), len(lengths))
        self._ended = [Prefilled(self.rows[i], self._cut(i, lengths[i]), logits[i][-1]) for i in ended]

    def collect(self) -> list[Prefilled]:
        ended, self._ended = [one for one in self._ended if one.row in self.rows], []
        if ended:
            still = len(self.rows) - len(ended)
            for done, context in zip(ended, self._contexts[still:], strict=True):
                scope, make = done.row.cache_scope, partial(self._blocks.make, done.kv)
                try:
                    self._prefixes.keep(context, scope, make, done.row.back_within)
                except RuntimeError as error:  # also the host's lack of memory
                    log.warning("K and V of a prompt could not be kept in host memory: %s", error)
            del self.rows[still:], self._contexts[still:]
        return ended

    def drop(self, row_id: RowId) -> None:
        others = [place for place, row in enumerate(self.rows) if row.row_id != row_id]
        if len(others) < len(self.rows):
            self._keys, self._values = self._keys[:, others], self._values[:, others]
            self.rows = [self.rows[place] for place in others]
            self._contexts = [self._contexts[place] for place in others]

    def begin_pass(self, rows: int, new: int) -> KvCells:
        begin, end = self._begin, self._begin + new
        counts = [min(max(len(context) - begin, 0), self._done - begin) for context in self._contexts[:rows]]
        return KvCells(self._keys[:, :rows], self._values[:, :rows], slice(begin, end), slice(end), counts)

    @property
    def _width(self) -> int:
        """Of the chunk's pass: later chunks write over columns behind its end."""
        return min(_round_up(self._done - self._begin, self._grain), self._keys.shape[3] - self._begin)

    def _forward(self, begin: int, end: int, wanted: list[range]) -> Tensor:
        """Logits (sum of wanted, vocab), row by row."""
        device, width = self._model.device, self._width
        parts = [context[begin:end] for context in self._contexts]
        tokens = send([(*part, *[0] * (width - len(part))) for part in parts], device)
        places = torch.arange(begin, begin + width, device=device).clamp_(max=self._model.context_length - 1)
        positions = places.expand(len(self.rows), width)
        chosen = [(place, column - begin) for place, columns in enumerate(wanted) for column in columns]
        rows, places = send(chosen, device).reshape(-1, 2).unbind(dim=1)
        return self._model.forward(tokens, positions, None, self, (rows, places))

    def _note_prompt(self, row: Row, columns: range, logits: Tensor) -> None:
        """Place p predicts token p + 1."""
        top = row.sampling.prompt_logprobs
        if top is None or row.generated:
            return
        spoken = row.prompt[columns.start + 1 : columns.stop + 1]
        lines = logits[: len(spoken)].log_softmax(dim=-1)
        found = token_logprobs(spoken, score(lines, send(spoken, logits.device), top), [top] * len(spoken))
        row.prompt_logprobs = (*(row.prompt_logprobs or (None,)), *found)

    def _cut(self, place: int, length: int) -> RowKv:
        """A view: the group's memory is free once all its rows have joined."""
        return RowKv(self._keys[:, place, :, :length], self._values[:, place, :, :length])


def _round_up(number: int, grain: int) -> int:
    return -(-number // grain) * grain
