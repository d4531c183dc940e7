"""Prefill apart from decode: a group of prompts of similar length becomes K, V and the logits of each first token.

Knows nothing of the running batch. The group is worked through in chunks of columns, so that a long prompt never
holds up the running rows for longer than one chunk.

             0     a        b      width
    row 0    p p p P P P P P p p p |       'P' the chunk [a, b) that is computed now
    row 1    p p p P P P P . . . . |       '.' padding behind; causal attention never lets a real token see it
    row 2    p p . . . . . . . . . |       done in the chunk before: left out of this one

Rows are sorted longest first, so the rows still at work are always the first ones. What all of them have kept from
earlier prompts is copied in place of being read, and chunks end at multiples of the cache's blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.kv.device_blocks import DeviceBlocks
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.messages import RowId, Tally
from engine.row import Row
from engine.sampling.sampler import score, token_logprobs
from engine.transfer import send
from models.network.attention import QUERY_BLOCK
from models.network.kv_adapter import KvCells
from models.network.loader import LoadedModel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A row whose prompt is done: its K and V, and the logits (vocab,) of its first token."""

    row: Row
    kv: RowKv
    logits: Tensor


class Prefill:
    """One group under way. Its buffer is its own, and is gone with it."""

    def __init__(
        self,
        model: LoadedModel,
        rows: Iterable[Row],
        prefixes: PrefixCache[RowKv] | None = None,
        blocks: DeviceBlocks | None = None,
    ) -> None:
        """`prefixes`: what is kept of prompts; without one chunks end anywhere, unless numbers shall not tell.
        `blocks`: what of it is on the device."""
        self._model = model
        self._block = QUERY_BLOCK if model.batch_invariant and not model.reads_exactly else 1
        self._prefixes = PrefixCache[RowKv](0, chunk=self._block) if prefixes is None else prefixes
        self._blocks = DeviceBlocks(model.device, 0) if blocks is None else blocks
        self.rows: list[Row] = sorted(rows, key=lambda row: -row.length)
        for row in self.rows:
            row.prompt_logprobs = None  # what was read of its prompt before is read again
        self.tally = Tally()
        """Tokens that the latest chunk computed."""
        self._contexts = [row.tokens for row in self.rows]  # what is read of each row
        self._ended: list[Prefilled] = []  # by the latest chunk
        kv, count = model.kv, len(self.rows)
        layout = (kv.layers, count, kv.kv_heads, self._columns(), kv.head_dim)
        self._keys = torch.zeros(layout, dtype=kv.dtype, device=kv.device)
        self._values = torch.zeros(layout, dtype=kv.dtype, device=kv.device)
        self._done = self._copy_prefixes()  # columns [0, done) are there
        self._copied = self._done * len(self.rows)  # tokens that no chunk's tally has

    def _columns(self) -> int:
        """Columns that are computed: those of the longest row, in whole blocks if numbers must not depend on others."""
        return -(-len(self._contexts[0]) // self._block) * self._block

    def _copy_prefixes(self) -> int:
        """Copy what is kept of every row's prompt; returns its columns."""
        contexts = zip(self.rows, self._contexts, strict=True)
        found = self._prefixes.find(
            [(() if row.scores_prompt else tokens, row.cache_scope) for row, tokens in contexts],
            lambda length: all(length in row.group.terms.keep_kv for row in self.rows),
        )
        chunk, shared = self._prefixes.chunk, len(found[0])
        for place, (row, blocks) in enumerate(zip(self.rows, found, strict=True)):
            row.cached_prompt = chunk * shared
            for index, block in enumerate(blocks):
                there, columns = self._blocks.read(block), slice(chunk * index, chunk * (index + 1))
                self._keys[:, place, :, columns], self._values[:, place, :, columns] = there.keys, there.values
        return chunk * shared

    def advance(self, max_tokens: int) -> list[Prefilled]:
        """`launch` a chunk and `collect` its rows."""
        self.launch(max_tokens)
        return self.collect()

    def finish(self, max_tokens: int) -> list[Prefilled]:
        """`advance` to the end; all rows, the longest first."""
        ended: list[Prefilled] = []
        while self.rows:
            ended = self.advance(max_tokens) + ended
        return ended

    def launch(self, max_tokens: int) -> None:
        """Compute the next chunk, at most `max_tokens` over all rows (but at least one block of columns).

        On a CUDA device the chunk is only under way when this returns, but for rows that want their prompt scored.
        """
        begin = self._done
        lengths = [len(context) for context in self._contexts]
        chunk = self._prefixes.chunk
        end = min(begin + max(chunk, max_tokens // len(self.rows) // chunk * chunk), self._columns())
        wanted = [_wanted(row, length, begin, end) for row, length in zip(self.rows, lengths, strict=True)]
        self._done = end
        counts = [len(columns) for columns in wanted]
        logits = torch.split(self._forward(begin, end, wanted), counts)
        for row, columns, lines in zip(self.rows, wanted, logits, strict=True):
            self._note_prompt(row, columns, lines)
        read = sum(min(length, end) - begin for length in lengths)
        self.tally = Tally(prompt=read, pad=len(lengths) * (end - begin) - read, cached=self._copied)
        self._copied = 0
        still = sum(length > end for length in lengths)
        self._ended = [
            Prefilled(self.rows[i], self._cut(i, lengths[i]), logits[i][-1]) for i in range(still, len(self.rows))
        ]

    def collect(self) -> list[Prefilled]:
        """The rows whose prompts ended in the latest chunk; they leave the group."""
        ended, self._ended = [one for one in self._ended if one.row in self.rows], []
        if ended:
            still = len(self.rows) - len(ended)
            for done, context in zip(ended, self._contexts[still:], strict=True):
                self._keep(done, context)
            del self.rows[still:], self._contexts[still:]
        return ended

    def _keep(self, done: Prefilled, context: Sequence[int]) -> None:
        try:
            self._prefixes.keep(context, done.row.cache_scope, partial(self._blocks.make, done.kv))
        except RuntimeError as error:  # what torch raises for any lack of memory, the host's too
            log.warning("K and V of a prompt could not be kept in host memory: %s", error)

    def drop(self, row_id: RowId) -> Row | None:
        """Take a cancelled row out; None when it is not here."""
        place = next((place for place, row in enumerate(self.rows) if row.row_id == row_id), None)
        if place is None:
            return None
        others = [index for index in range(len(self.rows)) if index != place]
        self._keys, self._values = self._keys[:, others], self._values[:, others]
        del self._contexts[place]
        return self.rows.pop(place)

    def begin_pass(self, rows: int, new: int) -> KvCells:
        """The columns [a, b) of the chunk, and all up to b that they read (a KvStore's verb)."""
        end = self._done
        counts = [min(max(len(context) - (end - new), 0), new) for context in self._contexts[:rows]]
        return KvCells(self._keys[:, :rows], self._values[:, :rows], slice(end - new, end), slice(end), counts)

    def _forward(self, begin: int, end: int, wanted: list[range]) -> Tensor:
        """Logits (sum of wanted, vocab) of the chunk [begin, end), row by row."""
        device = self._model.device
        parts = [context[begin:end] for context in self._contexts]
        tokens = send([(*part, *[0] * (end - begin - len(part))) for part in parts], device)
        # Padding behind may go beyond the context.
        places = torch.arange(begin, end, device=device).clamp_(max=self._model.context_length - 1)
        positions = places.expand(len(self.rows), end - begin)
        chosen = [(place, column - begin) for place, columns in enumerate(wanted) for column in columns]
        rows, places = send(chosen, device).reshape(-1, 2).unbind(dim=1)
        return self._model.forward(tokens, positions, None, self, (rows, places))

    def _note_prompt(self, row: Row, columns: range, logits: Tensor) -> None:
        """Log-probabilities of the prompt's own tokens, for rows that want them: place p speaks of token p + 1."""
        top = row.sampling.prompt_logprobs
        if top is None or row.generated:
            return
        spoken = row.prompt[columns.start + 1 : columns.stop + 1]
        lines = logits[: len(spoken)].log_softmax(dim=-1)
        found = token_logprobs(spoken, score(lines, send(spoken, logits.device), top), [top] * len(spoken))
        row.prompt_logprobs = (*(row.prompt_logprobs or (None,)), *found)

    def _cut(self, place: int, length: int) -> RowKv:
        """A row's own columns, copied, so that the group's buffer can go."""
        return RowKv(self._keys[:, place, :, :length].clone(), self._values[:, place, :, :length].clone())


def _wanted(row: Row, length: int, begin: int, end: int) -> range:
    """The columns of the chunk whose logits a row needs: its last, or all of them for prompt log-probabilities."""
    return range(begin if row.scores_prompt else max(begin, length - 1), min(end, length))
