"""One sequence: tokens, text and stop rule."""

from array import array
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.device import DeviceRow
from engine.kv.row_kv import RowKv
from engine.messages import REPETITION, FinishReason, RowSpec, RowUpdate, TokenLogprob
from engine.repetition import RepetitionDetector
from engine.sampling.grammar import Matcher
from models.text import Text
from models.text_stream import StopMatcher, TextStream, foresee_together


class Choice(msgspec.Struct, frozen=True, gc=False):
    token_id: int
    logprob: TokenLogprob | None = None


class TokenCounts:
    """Distinct tokens of a row, with counts in the answer, for penalties."""

    def __init__(self, prompt: Iterable[int], generated: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self.tokens = array("q", self._places)
        self.counts = array("f", [0.0]) * len(self.tokens)
        for token in generated:
            self.add(token)

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, len(self.tokens))
        if place == len(self.tokens):
            self.tokens.append(token)
            self.counts.append(0.0)
        self.counts[place] += 1


class Row(DeviceRow):
    kv: RowKv | None
    ended = False

    def __init__(self, spec: RowSpec, text: Text, end_ids: frozenset[int], matcher: Matcher | None = None) -> None:
        super().__init__(spec)
        self.generated: list[int] = []
        self.prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
        replayed = spec.sampling.replay_tokens is not None
        self.matcher = None if replayed else matcher  # of the grammar
        self._ignored = end_ids if spec.sampling.ignore_eos else frozenset()
        self._ends = frozenset() if spec.sampling.ignore_eos or replayed else end_ids
        self._stop_ids = frozenset(() if replayed else spec.sampling.stop_token_ids)
        self._text = text
        self._stream = text.stream()
        stops = () if replayed else spec.sampling.stop
        self._stops = StopMatcher(stops, include=spec.sampling.include_stop_str_in_output)
        self._said: TokenCounts | None = None
        free = not (replayed or spec.sampling.ignore_eos or spec.sampling.grammar is not None)
        self._repetition = RepetitionDetector() if free and spec.sampling.stop_repetition else None
        # steps in which most tokens only add text
        watched = stops or self.matcher or self._repetition
        last = min(spec.sampling.max_tokens, spec.sampling.replay_tokens or spec.sampling.max_tokens)
        self._plain_steps = range(0) if watched else range(2, last)
        self._marked = self._ends | self._stop_ids

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.prompt, *self.generated)

    @property
    def last_token(self) -> int:
        return self.generated[-1]

    @property
    def step(self) -> int:
        return len(self.generated)

    @property
    def said(self) -> TokenCounts:
        """Only with penalties."""
        if self._said is None:
            self._said, self._plain_steps = TokenCounts(self.prompt, self.generated), range(0)
        return self._said

    def barred_at(self, step: int) -> frozenset[int]:
        return self._marked if step < self.sampling.min_tokens else frozenset()

    @property
    def complete(self) -> bool:
        return self.matcher is not None and self.matcher.complete

    def allowed(self) -> NDArray[np.uint8] | None:
        """Bits, lowest id first; None without a grammar. End tokens before `min_tokens` only if nothing else. Raises
        GrammarFault.
        """
        if self.matcher is None:
            return None
        return self.matcher.allowed(self.generated, self.barred_at(self.step) | self._ignored)

    def accept(self, choice: Choice) -> RowUpdate:
        """Raises GrammarFault."""
        token = choice.token_id
        self.generated.append(token)
        if choice.logprob is None and len(self.generated) in self._plain_steps and token not in self._marked:
            return RowUpdate(self.row_id, (token,), self._stream.push(token))
        if self.matcher is not None:
            self.matcher.follow(self.generated)
        if self._said is not None:
            self._said.add(token)
        text, reason, stop_reason = self._read(token)
        self.ended = reason is not None
        logprobs = () if choice.logprob is None else (choice.logprob,)
        prompt, cached = (self.prompt_logprobs, self.cached_prompt) if self.step == 1 else (None, 0)
        return RowUpdate(self.row_id, (token,), text, logprobs, prompt, reason, stop_reason, cached_prompt=cached)

    def _read(self, token_id: int) -> tuple[str, FinishReason | None, str | int | None]:
        may_stop = self.step > self.sampling.min_tokens
        if may_stop and token_id in self._stop_ids:
            return self._rest(), FinishReason.STOP, token_id
        if token_id in self._ends and (may_stop or self.complete):
            return self._rest(), FinishReason.STOP, None
        piece = self._stream.push(token_id)
        text, stop = self._stops.push(piece) if may_stop else (piece, None)
        if stop is not None:
            return text, FinishReason.STOP, stop
        if self.step == self.sampling.replay_tokens or self.complete:
            return text + self._rest(), FinishReason.STOP, None
        if self._repetition is not None and self._repetition.push(token_id) and may_stop:
            return text + self._rest(), FinishReason.STOP, REPETITION
        if self.step >= self.sampling.max_tokens:
            return text + self._rest(), FinishReason.LENGTH, None
        return text, None, None

    def _rest(self) -> str:
        text, stop = self._stops.push(self._stream.flush())
        return text if stop is not None else text + self._stops.flush()


def decode_together(rows: Sequence[Row], choices: Sequence[object]) -> None:
    """Where text depends on neighbouring tokens, that of all next ones in one call."""
    if rows and isinstance(rows[0]._stream, TextStream):
        pairs = zip(rows, choices, strict=True)
        chosen = [(row._stream, one.token_id) for row, one in pairs if isinstance(one, Choice)]
        foresee_together(rows[0]._text, [(one, token) for one, token in chosen if isinstance(one, TextStream)])
