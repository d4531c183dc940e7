"""Grammars compiled for a model's vocabulary, and where each row is in its own. The only file that knows llguidance.

Knows no tensor and no batch. Compiled grammars are shared by the server, which compiles them before a request is
taken in, and by all executors of a process, which only copy them.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Protocol
from weakref import WeakValueDictionary

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from engine.device import RowFault
from engine.messages import Grammar, GrammarKind
from engine.sampling.grammar_bounds import require_bounds
from engine.sampling.grammar_error import GrammarError as GrammarError

log = logging.getLogger(__name__)

WHITESPACE = r" |\n[ \t]{0,32}"
"""Between the tokens of JSON, at most this: models that are not sure what to say next would fill a page with it."""

MAX_STATES = 50_000
"""States that a row's lexer may grow to, of about 1.5 kB each; the library's own bound is five times as large."""

DEAD_END = "NoExtensionBias"
"""How the library's complaint begins where a grammar that compiles lets no token follow."""

ASCII_CLASSES = MappingProxyType({r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]"})
"""What these stand for in a pattern, as in JSON schema's. The library takes Unicode's for them, in a newer version than
most clients' libraries know, which then find that an answer does not match.
"""

MAX_ITEMS = 10_000
"""Ways through an ambiguous grammar that may be open in one step; the library's own bound is five times as large."""

MAX_FUEL = 500_000
"""Work for the lexer of one grammar; the library's own bound is twice as large."""

LONGEST_MESSAGE = 400
"""Characters of the library's complaint that a client is told."""


class GrammarFault(RowFault):
    """A row cannot go on in its grammar; the message is for the client."""


class Vocabulary(Protocol):
    """What is needed of models.text.Text."""

    def to_json(self) -> str:
        """The tokenizer, in the format of the tokenizers library."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Compiled:
    """A grammar that can be followed. While somebody holds on to it, it need not be compiled again."""

    grammar: Grammar
    start: LLMatcher
    """A matcher at the very beginning, of which each row takes a copy."""


class Grammars:
    """The compiled grammars of one model: those in use, and the `size` that were used last. For any thread.

    width  tokens that the network knows
    """

    def __init__(self, vocabulary: Vocabulary, width: int, end_token_ids: Collection[int], *, size: int = 64) -> None:
        self._vocabulary = vocabulary
        self._width = width
        self._ends = sorted(end_token_ids)
        self._size = size
        self._limits = LLParserLimits(
            max_lexer_states=MAX_STATES, step_max_items=MAX_ITEMS, initial_lexer_fuel=MAX_FUEL, verbose_errors=False
        )
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[Grammar, Compiled] = WeakValueDictionary()
        self._recent: OrderedDict[Grammar, Compiled] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, grammar: Grammar) -> bool:
        return grammar in self._known

    def compile(self, grammar: Grammar) -> Compiled:
        """Milliseconds for a new grammar, microseconds for a known one. Raises GrammarError."""
        with self._lock:
            compiled = self._known.get(grammar)
        if compiled is None:
            compiled = self._compile(grammar)
        with self._lock:
            self._known[grammar] = self._recent[grammar] = compiled
            self._recent.move_to_end(grammar)
            while len(self._recent) > self._size:
                self._recent.popitem(last=False)
        return compiled

    def prepare(self) -> None:
        """Read the vocabulary now rather than for the first grammar. Should that fail, whoever needs it is told."""
        try:
            _ = self._tokenizer
        except GrammarError as error:
            log.warning("%s", error)

    def check(self, grammar: Grammar) -> None:
        """Whether it could be compiled, as far as that does not depend on the vocabulary. Raises GrammarError."""
        require_bounds(grammar)
        failed, messages = LLMatcher.validate_grammar_with_warnings(_written(grammar), limits=self._limits)
        if failed:
            raise _refusal(messages[0])

    def _compile(self, grammar: Grammar) -> Compiled:
        require_bounds(grammar)
        start = LLMatcher(self._tokenizer, _written(grammar), log_level=0, limits=self._limits)
        if start.is_error():
            raise _refusal(start.get_error())
        _try_first_step(start.deep_copy())
        return Compiled(grammar, start)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The vocabulary as a tree of bytes; takes half a second for 50,000 tokens."""
        try:
            written = self._vocabulary.to_json()
            return LLTokenizer(written, n_vocab=self._width, eos_token=self._ends or None)
        except (ValueError, RuntimeError) as error:
            raise GrammarError(f"answers of this model cannot be constrained: {_one_line(str(error))}") from error


class Matcher:
    """Where one row is in its grammar. For one thread at a time; it moves between threads with its row."""

    def __init__(self, grammars: Grammars, grammar: Grammar) -> None:
        self._grammars = grammars
        self._grammar = grammar
        self._taken = 0  # tokens of the answer that the matcher has followed

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
        if new and not self._matcher.consume_tokens(new):
            raise self._fault()
        self._taken = len(tokens)

    def allowed(self, tokens: Sequence[int], barred: Collection[int]) -> NDArray[np.uint8]:
        """What may follow the answer's tokens: a bit for each token, the least first, in whole words of 32.

        Those of `barred` are left out, unless nothing else may follow. Raises GrammarFault.
        """
        self.follow(tokens)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise self._fault()
        left = _without(bits, barred) if barred else bits
        return left if left.any() else bits

    def _fault(self) -> GrammarFault:
        return GrammarFault(f"the answer cannot go on in its grammar: {_one_line(self._matcher.get_error())}")


def _without(bits: NDArray[np.uint8], barred: Collection[int]) -> NDArray[np.uint8]:
    left = bits.copy()
    for token in barred:
        left[token // 8] &= 0xFF ^ (1 << token % 8)
    return left


def _try_first_step(matcher: LLMatcher) -> None:
    """Raise GrammarError for a grammar that nothing matches, or that is too ambiguous to begin with."""
    matcher.compute_bitmask()
    if matcher.is_error():
        raise _refusal(matcher.get_error())


def _refusal(message: str) -> GrammarError:
    """The library's complaint, without the traces of its own faults."""
    if "panic" in message:
        log.warning("the grammar compiler failed: %s", _one_line(message))
        return GrammarError("is too large or too complex to be compiled; shorten it")
    if message.startswith(DEAD_END):
        return GrammarError("no text matches it")
    return GrammarError(_one_line(message))


def _written(grammar: Grammar) -> str:
    """The grammar as the library reads it. Raises GrammarError."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            try:
                return LLMatcher.grammar_from_json_schema(
                    grammar.text, overrides={"whitespace_pattern": WHITESPACE, "lenient": grammar.lenient}
                )
            except ValueError as error:
                raise GrammarError(_one_line(str(error))) from error
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(_with_ascii_classes(grammar.text))
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.text)


def _with_ascii_classes(pattern: str) -> str:
    return re.sub(r"\\.", lambda pair: ASCII_CLASSES.get(pair[0], pair[0]), pattern, flags=re.DOTALL)


def _one_line(message: str) -> str:
    """What a client may read: one line of printable characters, of bounded length."""
    line = " ".join(message.split())[:LONGEST_MESSAGE]
    return "".join(letter if letter.isprintable() else "?" for letter in line)
