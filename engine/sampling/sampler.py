"""Chooses next tokens: bans, grammar, bias, penalties, temperature, min-p, top-k, top-p."""

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import RowFault
from engine.messages import TokenLogprob
from engine.row import Choice, Row
from engine.sampling.draw import draw
from engine.sampling.grammar import GrammarFault
from engine.sampling.table import SamplingTable
from engine.transfer import Fetch, move, send
from models.network.likeliest import find_peaks


def constrain(table: SamplingTable, logits: Tensor) -> tuple[list[int], dict[int, GrammarFault]]:
    """In place on (rows, vocab); constrained places, and faults by place."""
    bits: dict[int, NDArray[np.uint8]] = {}
    faults: dict[int, GrammarFault] = {}
    for place in table.grammars:
        try:
            line = table.rows[place].allowed()
        except GrammarFault as fault:
            faults[place] = fault
        else:
            if line is not None:
                bits[place] = line
    if bits:
        at = send(list(bits), logits.device)
        packed = torch.from_numpy(np.stack(list(bits.values()))).to(logits.device)
        logits[at] = logits[at].masked_fill_(~unpack(packed, logits.shape[-1]), -torch.inf)
    return list(bits), faults


def unpack(packed: Tensor, width: int) -> Tensor:
    """(rows, bytes), least bit first -> (rows, width)."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, :, None] >> places) & 1).bool().flatten(1)[:, :width]


UNKNOWN = array("q", [-1])  # unread token

NEVER = array("f", [0.0])

NO_STEPS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Unread:
    """On the device only.

    tokens  (rows,), -1 where the host has it
    places  of these rows, each once
    """

    tokens: Tensor
    places: Collection[int] = ()

    def count_in(self, tokens: Tensor, often: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Replace UNKNOWN in `tokens`, and count them in `often`, for rows at `places`."""
        newest = self.tokens[places]
        tokens = torch.where(tokens < 0, newest, tokens)
        own = tokens == newest
        before = torch.zeros(len(self.tokens), device=often.device).index_add_(0, places, often * own)
        return tokens, torch.where(own, before[places] + 1, often)


def penalize(table: SamplingTable, logits: Tensor, unread: Unread | None = None) -> list[int]:
    """In place on (rows, vocab); returns penalized places."""
    rows, penalized = table.rows, table.penalized
    if not penalized:
        return []
    late = unread.places if unread is not None else ()
    said = [rows[place].said for place in penalized]
    wishes = [rows[place].sampling for place in penalized]
    given = [(one.repetition_penalty, one.frequency_penalty, one.presence_penalty) for one in wishes]
    more = [1 if place in late else 0 for place in penalized]
    lengths = torch.tensor([len(one.tokens) + extra for one, extra in zip(said, more, strict=True)])
    # by row and token: place, count in the answer, three penalties
    ids = [np.frombuffer(one.tokens + UNKNOWN * extra, np.int64) for one, extra in zip(said, more, strict=True)]
    counts = [np.frombuffer(one.counts + NEVER * extra, np.float32) for one, extra in zip(said, more, strict=True)]
    often = torch.from_numpy(np.concatenate(counts))
    lines = torch.cat([often[:, None], torch.tensor(given).repeat_interleave(lengths, dim=0)], dim=1)
    tokens = move(torch.from_numpy(np.concatenate(ids)), logits.device)
    places = move(torch.tensor(penalized).repeat_interleave(lengths), logits.device)
    often, repetition, frequency, presence = move(lines, logits.device).unbind(dim=1)
    if late and unread is not None:
        tokens, often = unread.count_in(tokens, often, places)
    values = logits[places, tokens]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[places, tokens] = values - (frequency * often + presence * (often > 0))
    return penalized


class NonFiniteLogits(RowFault):
    wipe = True

    def __init__(self) -> None:
        super().__init__("the model computed a value that is not a finite number")


Unchosen: TypeAlias = NonFiniteLogits | GrammarFault  # no next token


class Chosen:
    """From logits (rows, vocab) in float32, overwritten, on their way to the host, which does not wait with `unread`;
    grammars need their tokens. `table` keeps what rows ask from step to step.

    tokens  (rows,), undefined where a row has none
    finite  (rows,)
    """

    def __init__(self, table: SamplingTable, rows: Sequence[Row], logits: Tensor, unread: Unread | None = None) -> None:
        device = logits.device
        table.sync(rows)
        self.rows = table.rows
        self.redrawn = False  # the host drew another token
        peaks, self.tokens = find_peaks(logits)
        self.finite = torch.isfinite(peaks)
        self._wants = table.logprobs
        self._raw = logits[send(self._wants, device)].log_softmax(dim=-1) if self._wants else logits[:0]
        constrained, self._faults = constrain(table, logits)
        steps = table.steps(() if unread is None else unread.places) if table.draws or table.bars else NO_STEPS
        changed = shape(table, logits, constrained, steps, unread)
        if shaped := [place for place in changed if rows[place].sampling.temperature == 0]:
            at = send(shaped, device)
            self.tokens.index_copy_(0, at, find_peaks(logits[at])[1])
        self._draws, settled = table.draws, None
        if self._draws:
            settled = self._draw(table, logits, steps, waits=unread is None)
        scores: Sequence[Tensor] = ()
        if self._wants:
            most = max(rows[place].sampling.logprobs or 0 for place in self._wants)
            scores = score(self._raw, self.tokens[send(self._wants, device)], most)
        told = [self.tokens, self.finite.long(), *(() if settled is None else (settled,))]
        self._fetch = Fetch(torch.stack(told), *scores)

    def _draw(self, table: SamplingTable, logits: Tensor, steps: NDArray[np.int64], *, waits: bool) -> Tensor | None:
        """(rows,): settled; None: all."""
        at = None if len(self._draws) == len(self.rows) else send(self._draws, logits.device)
        some = logits if at is None else logits[at]
        self._drawn = draw(some, table.wishes(steps, logits.device), table.cuts, waits=waits)
        settled = self._drawn.settled
        if at is None:
            self.tokens = self._drawn.tokens
            return None if settled is None else settled.long()
        self.tokens.index_copy_(0, at, self._drawn.tokens)
        return None if settled is None else torch.ones_like(self.tokens).index_copy_(0, at, settled.long())

    def read(self) -> list[Choice | Unchosen]:
        found, *scores = self._fetch.read()
        tokens, finite, *rest = found.tolist()
        failed: dict[int, Unchosen] = {**self._faults}
        failed.update((place, NonFiniteLogits()) for place in _find_zeros(finite))
        tops = [self.rows[place].sampling.logprobs or 0 for place in self._wants]
        told = token_logprobs([tokens[place] for place in self._wants], scores, tops) if scores else ()
        logprobs = dict(zip(self._wants, told, strict=True))
        for place in _find_zeros(*rest) if rest else ():
            token = self._drawn.redraw(self._draws.index(place))
            if token != tokens[place]:
                self.redrawn, tokens[place] = True, token
                if place in logprobs:
                    line = slice(index := self._wants.index(place), index + 1)
                    anew = score(self._raw[line], self.tokens.new_tensor([token]), tops[index])
                    (logprobs[place],) = token_logprobs([token], anew, tops[line])
        if not (failed or logprobs):
            return list(map(Choice, tokens))
        return [failed.get(place) or Choice(token, logprobs.get(place)) for place, token in enumerate(tokens)]


def _find_zeros(flags: Sequence[int]) -> list[int]:
    return [place for place, flag in enumerate(flags) if not flag] if 0 in flags else []


def sample(rows: Sequence[Row], logits: Tensor) -> list[Choice | Unchosen]:
    return Chosen(SamplingTable(), rows, logits).read()


def shape(
    table: SamplingTable, logits: Tensor, constrained: Sequence[int], steps: NDArray[np.int64], unread: Unread | None
) -> set[int]:
    """In place on (rows, vocab); returns changed places.

    constrained  by grammars
    steps        of next tokens
    """
    rows, free = table.rows, [place for place in table.bars if place not in constrained]
    cells = [(place, token) for place in free for token in rows[place].barred_at(int(steps[place]))]
    if cells:
        at, ids = send(cells, logits.device).unbind(dim=1)
        logits[at, ids] = -torch.inf
    biases = [(place, *bias) for place in table.biased for bias in rows[place].sampling.logit_bias]
    if biases:
        at, ids = send([(place, token) for place, token, _ in biases], logits.device).unbind(dim=1)
        logits[at, ids] += send([value for *_, value in biases], logits.device, torch.float32)
    penalized = penalize(table, logits, unread)
    return {*constrained, *penalized, *(place for place, _ in cells), *table.biased}


def score(logprobs: Tensor, tokens: Tensor, most: int) -> Sequence[Tensor]:
    """Of (rows, vocab): the token's, its rank, the `most` likeliest and ids."""
    own = logprobs.gather(1, tokens[:, None])
    return own[:, 0], (logprobs > own).sum(dim=-1), *logprobs.topk(most, dim=-1)


def token_logprobs(tokens: Sequence[int], scores: Sequence[Tensor], tops: Sequence[int]) -> list[TokenLogprob]:
    lines = zip(tokens, tops, *(part.tolist() for part in scores), strict=True)
    return [
        TokenLogprob(token, own, larger + 1, tuple(zip(ids[:top], values[:top], strict=True)))
        for token, top, own, larger, values, ids in lines
    ]
