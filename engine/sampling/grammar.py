"""Grammars compiled for a model's vocabulary, and where a row is in its grammar: what may follow its answer, within a
budget of its neighbours' time. The only file that knows llguidance.

Knows no tensor and no batch. Compiled grammars are shared by the server, which compiles them before a request is
taken in, and by all executors of a process, which only copy them.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import TypeVar
from weakref import WeakSet, WeakValueDictionary

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from engine.device import RowFault
from engine.sampling.params import Grammar, GrammarKind

log = logging.getLogger(__name__)

WHITESPACE = r" |\n[ \t]{0,32}"
"""Between the tokens of JSON, at most this: models that are not sure what to say next would fill a page with it."""

MAX_STATES = 20_000
"""States that a grammar's lexer may grow to while answers are written; the library's own bound is ten times as high."""

STATE_BYTES = 800
"""Bytes of such a state, as measured."""

KEPT_BYTES = 256 * 2**20
"""Bytes of the compiled grammars that no answer uses, as large as they can grow."""

HELD_BYTES = 2**30
"""Bytes of all compiled grammars, as they are when they are new."""

LEXER_ERROR = "lexer error"
"""How the library's complaint begins where the part that all rows of a grammar share has failed."""

DEAD_END = "NoExtensionBias"
"""How the library's complaint begins where a grammar that compiles lets no token follow."""

ASCII_CLASSES = MappingProxyType({r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]"})
"""Classes of a pattern -> their ASCII meaning, as in JSON schema. The library takes Unicode's, in a newer version than
most clients' libraries know, which then find that an answer does not match.
"""

CLASS = re.compile(r"\\.", flags=re.DOTALL)

MAX_ITEMS = 10_000
"""Ways through an ambiguous grammar that may be open in one step; the library's own bound is five times as large."""

MAX_FUEL = 500_000
"""Work for the lexer of one grammar; the library's own bound is twice as large."""

LONGEST_MESSAGE = 400
"""Characters of the library's complaint that a client is told."""


class GrammarError(ValueError):
    """A grammar that cannot be used; the message is for the client."""


class GrammarsFull(GrammarError):
    """A grammar that could be used, were there not so many others in use."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Compiled:
    """A grammar that can be followed. While it is referred to, it need not be compiled again."""

    grammar: Grammar
    start: LLMatcher
    """A matcher at the very beginning that has told what may come first, of which each row takes a copy."""
    bytes: int
    """Bytes that it took to compile it."""


class Grammars:
    """The compiled grammars of one model: those in use, and of the others those used last. For any thread.

    vocabulary  writes the tokenizer as JSON, in the format of the tokenizers library
    width       tokens that the network knows
    kept, held  bytes of those that no answer uses, and of all
    """

    def __init__(
        self,
        vocabulary: Callable[[], str],
        width: int,
        end_token_ids: Collection[int],
        *,
        kept: int = KEPT_BYTES,
        held: int = HELD_BYTES,
    ) -> None:
        self._vocabulary = vocabulary
        self._width = width
        self._ends = sorted(end_token_ids)
        self._kept, self._held = kept, held
        self._limits = LLParserLimits(
            max_lexer_states=MAX_STATES, step_max_items=MAX_ITEMS, initial_lexer_fuel=MAX_FUEL, verbose_errors=False
        )
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[Grammar, Compiled] = WeakValueDictionary()
        self._recent: OrderedDict[Grammar, Compiled] = OrderedDict()
        self._spoiled: WeakSet[Compiled] = WeakSet()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, grammar: Grammar) -> bool:
        return grammar in self._known

    def compile(self, grammar: Grammar, size: int = 0) -> Compiled:
        """Milliseconds for a new grammar, of `size` bytes, and microseconds for a known one. Raises GrammarError."""
        with self._lock:
            compiled = self._known.get(grammar)
            if compiled is None and sum(one.bytes for one in self._known.values()) + size > self._held:
                raise GrammarsFull("needs more memory than the grammars in use leave; try again later")
        if compiled is None:
            compiled = self._compile(grammar, size)
        with self._lock:
            self._known[grammar] = compiled
            if compiled not in self._spoiled:
                self._recent[grammar] = compiled
                self._recent.move_to_end(grammar)
            while sum(one.bytes + MAX_STATES * STATE_BYTES for one in self._recent.values()) > self._kept:
                self._recent.popitem(last=False)
        return compiled

    def spoil(self, grammar: Grammar) -> None:
        """Compile it anew once the present calls have ended: its lexer, which all its rows share, cannot go on."""
        with self._lock:
            if (compiled := self._known.get(grammar)) is not None:
                self._spoiled.add(compiled)
            self._recent.pop(grammar, None)

    def prepare(self) -> None:
        """Read the vocabulary now rather than for the first grammar. Should that fail, the first grammar fails too."""
        try:
            _ = self._tokenizer
        except GrammarError as error:
            log.warning("%s", error)

    def check(self, grammar: Grammar) -> None:
        """Whether it could be compiled, as far as that does not depend on the vocabulary. Raises GrammarError."""
        failed, messages = LLMatcher.validate_grammar_with_warnings(_written(grammar), limits=self._limits)
        if failed:
            raise _refusal(messages[0])

    def _compile(self, grammar: Grammar, size: int) -> Compiled:
        start = LLMatcher(self._tokenizer, _written(grammar), log_level=0, limits=self._limits)
        if start.is_error():
            raise _refusal(start.get_error())
        start.compute_bitmask()  # fails for a grammar that nothing matches, or that is too ambiguous to begin with
        if start.is_error():
            raise _refusal(start.get_error())
        return Compiled(grammar, start, size)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The vocabulary as a tree of bytes; takes half a second for 50,000 tokens."""
        try:
            return LLTokenizer(self._vocabulary(), n_vocab=self._width, eos_token=self._ends or None)
        except (ValueError, RuntimeError) as error:
            raise GrammarError(f"answers of this model cannot be constrained: {_one_line(str(error))}") from error


def _refusal(message: str) -> GrammarError:
    return GrammarError("no text matches it" if message.startswith(DEAD_END) else tell(message))


def tell(message: str) -> str:
    """The library's complaint, without the traces of its own faults."""
    if "panic" in message:
        log.warning("the grammar library failed: %s", _one_line(message))
        return "is too large or too complex; shorten it"
    return _one_line(message.replace("<non-verbose/>", ""))


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
            return LLMatcher.grammar_from_regex(CLASS.sub(lambda one: ASCII_CLASSES.get(one[0], one[0]), grammar.text))
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.text)


def _one_line(message: str) -> str:
    """A message as one line of printable characters, of bounded length, which a client may read."""
    line = " ".join(message.split())[:LONGEST_MESSAGE]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


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
