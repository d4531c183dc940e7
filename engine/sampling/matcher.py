"""Where a row is in its grammar: what may follow its answer, within a budget of its neighbours' time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from engine.device import RowFault
from engine.sampling.grammar import LEXER_ERROR, GrammarError, Grammars, tell
from engine.sampling.params import Grammar

MASK_SECONDS, TOKEN_SECONDS = 0.05, 0.001
"""Seconds of its thread that a row's masks may take, and for each token of its answer: some ten times the usual."""

T = TypeVar("T")


class GrammarFault(RowFault):
    """A row cannot go on in its grammar; the message is for the client."""


class GrammarTooCostly(GrammarFault):
    """Telling what may follow takes more time or memory than a row may have, which is the grammar's fault."""

    by_client = True


OURS = ("doesn't satisfy the grammar", "parser stopped in consume_token")
"""The library's complaint where a row took a token that it had not allowed; all else lies in the grammar, more
states, ways or alternatives than a row may have, and for most of it the library names no other reason.
"""


class Matcher:
    """Where one row is in its grammar. For one thread at a time; it moves between threads with its row.

    clock  seconds that the present thread has computed
    """

    def __init__(self, grammars: Grammars, grammar: Grammar, clock: Callable[[], float] = time.thread_time) -> None:
        self._grammars = grammars
        self._grammar = grammar
        self._clock = clock
        self._taken = 0  # tokens of the answer that the matcher has followed
        self._seconds = 0.0

    @cached_property
    def _matcher(self) -> LLMatcher:
        """Made when it is first needed, so that whatever is wrong with it hits its row alone."""
        try:
            return self._grammars.compile(self._grammar).start.deep_copy()
        except GrammarError as error:
            raise GrammarFault(str(error)) from error

    @property
    def complete(self) -> bool:
        """Whether nothing may follow what was taken, or the end token was."""
        return self._matcher.is_stopped()

    def follow(self, tokens: Sequence[int]) -> None:
        """Take those of the answer's tokens that are new; raises GrammarFault when they are not allowed."""
        new = list(tokens[self._taken :])
        self._taken = len(tokens)
        if new:
            self._compute(partial(self._matcher.consume_tokens, new))

    def allowed(self, tokens: Sequence[int], barred: Collection[int]) -> NDArray[np.uint8]:
        """Tokens that may follow the answer's: a bit for each token, the least first, in whole words of 32.

        Those of `barred` are left out, unless nothing else may follow. Raises GrammarFault.
        """
        self.follow(tokens)
        bits = np.frombuffer(self._compute(self._matcher.compute_bitmask), np.uint8)
        left = _without(bits, barred) if barred else bits
        return left if left.any() else bits

    def _compute(self, work: Callable[[], T]) -> T:
        """Let the library do something, within what a row may take of its neighbours' time. Raises GrammarFault."""
        matcher, begin = self._matcher, self._clock()
        result = work()
        self._seconds += self._clock() - begin
        if matcher.is_error():
            raise self._fault(matcher.get_error())
        if self._seconds > MASK_SECONDS + TOKEN_SECONDS * self._taken:
            raise GrammarTooCostly(_tell("it takes too long to tell what may follow; make the grammar less ambiguous"))
        return result

    def _fault(self, reason: str) -> GrammarFault:
        if reason.startswith(LEXER_ERROR):
            self._grammars.spoil(self._grammar)
        kind = GrammarFault if any(ours in reason for ours in OURS) else GrammarTooCostly
        return kind(_tell(tell(reason)))


def _tell(reason: str) -> str:
    return f"the answer cannot go on in its grammar: {reason}"


def _without(bits: NDArray[np.uint8], barred: Collection[int]) -> NDArray[np.uint8]:
    left = bits.copy()
    for token in barred:
        left[token // 8] &= 0xFF ^ (1 << token % 8)
    return left
