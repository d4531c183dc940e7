"""Grammars by llguidance, known only here: compiled by the server, copied by executors."""

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import orjson
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from engine.device import RowFault
from engine.sampling.json_schema import loosen_schema, strip_schema
from engine.sampling.params import Grammar, GrammarKind

log = logging.getLogger(__name__)

WHITESPACE = r" |\n[ \t]{0,32}"  # unsure models fill pages with it

MAX_STATES = 20_000  # of a lexer; a tenth of the library's bound

STATE_BYTES = 800  # measured

KEPT_BYTES = 256 * 2**20  # unused grammars, at full size

HELD_BYTES = 2**30  # all grammars, when new

LEXER_ERROR = "lexer error"  # prefix of errors in what rows share

DEAD_END = "NoExtensionBias"  # no token is allowed

# JSON Schema's ASCII; llguidance takes Unicode
ASCII_CLASSES: Mapping[str, str] = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]"}

CLASS = re.compile(r"\\.", flags=re.DOTALL)
JSON_RULE = re.compile(r"^(?P<name>\w+): %json (?P<schema>\{.*\})$", flags=re.MULTILINE)

MAX_ITEMS = 10_000  # parses of an ambiguity; a fifth of the library's bound

MAX_FUEL = 500_000  # lexer work; half the library's bound

LONGEST_MESSAGE = 400  # of errors


class GrammarError(ValueError):
    """For the client."""


class GrammarsFull(GrammarError):
    pass


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Compiled:
    """While referenced, not compiled again."""

    grammar: Grammar
    start: LLMatcher  # with its first mask; rows copy it
    bytes: int
    unchecked: tuple[str, ...] = ()  # places of unenforced keywords


@dataclass(eq=False)
class Grammars:
    """Those in use, and recent others. Thread-safe."""

    vocabulary: Callable[[], str]  # tokenizers' JSON
    width: int  # largest id + 1
    end_token_ids: Collection[int]
    _: KW_ONLY
    kept: int = KEPT_BYTES  # of unused ones
    held: int = HELD_BYTES  # of all
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: WeakValueDictionary[Grammar, Compiled] = field(default_factory=WeakValueDictionary)
    _recent: OrderedDict[Grammar, Compiled] = field(default_factory=OrderedDict)
    _spoiled: WeakSet[Compiled] = field(default_factory=WeakSet)

    def compile(self, grammar: Grammar, size: int = 0) -> Compiled:
        """Milliseconds for `size` bytes, or known. Raises GrammarError."""
        with self._lock:
            compiled = self._known.get(grammar)
            if compiled is None and sum(one.bytes for one in self._known.values()) + size > self.held:
                raise GrammarsFull("needs more memory than the grammars in use leave; try again later")
        if compiled is None:
            compiled = self._compile(grammar, size)
        with self._lock:
            self._known[grammar] = compiled
            if compiled not in self._spoiled:
                self._recent[grammar] = compiled
                self._recent.move_to_end(grammar)
            while sum(one.bytes + MAX_STATES * STATE_BYTES for one in self._recent.values()) > self.kept:
                self._recent.popitem(last=False)
        return compiled

    def spoil(self, grammar: Grammar) -> None:
        with self._lock:
            if (compiled := self._known.get(grammar)) is not None:
                self._spoiled.add(compiled)
            self._recent.pop(grammar, None)

    def prepare(self) -> None:
        try:
            _ = self._tokenizer
        except GrammarError as error:
            log.warning("%s", error)

    def _compile(self, grammar: Grammar, size: int) -> Compiled:
        text, unchecked = _written(grammar)
        limits = LLParserLimits(
            max_lexer_states=MAX_STATES, step_max_items=MAX_ITEMS, initial_lexer_fuel=MAX_FUEL, verbose_errors=False
        )
        start = LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        if not start.is_error():
            start.compute_bitmask()  # fails where nothing matches
        if start.is_error():
            message = start.get_error()
            raise GrammarError("no text matches it" if message.startswith(DEAD_END) else tell(message))
        return Compiled(grammar, start, size, tuple(unchecked))

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """Half a second for 50,000 tokens."""
        try:
            return LLTokenizer(self.vocabulary(), n_vocab=self.width, eos_token=sorted(self.end_token_ids) or None)
        except (ValueError, RuntimeError) as error:
            raise GrammarError(f"answers of this model cannot be constrained: {_one_line(str(error))}") from error


def tell(message: str) -> str:
    if "panic" in message:
        log.warning("the grammar library failed: %s", _one_line(message))
        return "is too large or too complex; shorten it"
    return _one_line(message.replace("<non-verbose/>", "").partition(". Enable 'coerce_one_of'")[0])


def _written(grammar: Grammar) -> tuple[str, list[str]]:
    """For the library, and unenforced places. Raises GrammarError."""
    unchecked: list[str] = []

    def fit(rule: re.Match[str]) -> str:
        try:
            schema = orjson.loads(rule["schema"])
        except ValueError:
            return rule[0]  # the library's error is better
        return f"{rule['name']}: %json {_fit(schema, schema.get('x-guidance'), rule['name'], unchecked)}"

    try:
        match grammar.kind:
            case GrammarKind.JSON_SCHEMA:
                options = {"whitespace_pattern": WHITESPACE, "lenient": grammar.lenient}
                text = _fit(orjson.loads(grammar.text), options, "", unchecked)
                return LLMatcher.grammar_from_json_schema(text), unchecked
            case GrammarKind.REGEX:
                pattern = CLASS.sub(lambda one: ASCII_CLASSES.get(one[0], one[0]), grammar.text)
                return LLMatcher.grammar_from_regex(pattern), unchecked
            case GrammarKind.LARK:
                return LLMatcher.grammar_from_lark(JSON_RULE.sub(fit, grammar.text)), unchecked
    except ValueError as error:
        raise GrammarError(_one_line(str(error))) from error
    except RecursionError:
        raise GrammarError("is nested too deeply; flatten it") from None


def _fit(schema: Any, options: Any, rule: str, unchecked: list[str]) -> str:
    schema, options = strip_schema(schema), options if isinstance(options, dict) else {}
    if options.get("lenient"):
        schema, without = loosen_schema(schema, _takes)
        unchecked += (f"{rule}.{path}".lstrip(".") for path in without)
    return orjson.dumps({**schema, "x-guidance": {**options, "lenient": False}}).decode()


def _takes(schema: Any) -> bool:
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(orjson.dumps(schema).decode()))


def _one_line(message: str) -> str:
    line = " ".join(message.split())[:LONGEST_MESSAGE]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


# thread seconds: ten times the usual
MASK_SECONDS, TOKEN_SECONDS = 0.05, 0.001

T = TypeVar("T")


class GrammarFault(RowFault):
    """For the client."""


class GrammarTooCostly(GrammarFault):
    """Masks take too much time or memory."""

    by_client = True


# ours; others are the grammar's
OURS = ("doesn't satisfy the grammar", "parser stopped in consume_token")


@dataclass(eq=False)
class Matcher:
    """One thread at a time."""

    grammars: Grammars
    grammar: Grammar
    clock: Callable[[], float] = time.thread_time  # CPU seconds
    _taken: int = 0  # tokens
    _seconds: float = 0.0

    @cached_property
    def _matcher(self) -> LLMatcher:
        try:
            return self.grammars.compile(self.grammar).start.deep_copy()
        except GrammarError as error:
            raise GrammarFault(str(error)) from error

    @property
    def complete(self) -> bool:
        return self._matcher.is_stopped()

    def follow(self, tokens: Sequence[int]) -> None:
        """Raises GrammarFault."""
        new = list(tokens[self._taken :])
        self._taken = len(tokens)
        if new:
            self._compute(partial(self._matcher.consume_tokens, new))

    def allowed(self, tokens: Sequence[int], barred: Collection[int]) -> NDArray[np.uint8]:
        """Bits in words of 32, without `barred` unless nothing else is allowed. Raises GrammarFault."""
        self.follow(tokens)
        bits = np.frombuffer(self._compute(self._matcher.compute_bitmask), np.uint8)
        left = bits.copy() if barred else bits
        for token in barred:
            left[token // 8] &= 0xFF ^ (1 << token % 8)
        return left if left.any() else bits

    def _compute(self, work: Callable[[], T]) -> T:
        """Within the budget. Raises GrammarFault."""
        matcher, begin = self._matcher, self.clock()
        result = work()
        self._seconds += self.clock() - begin
        if matcher.is_error():
            reason = matcher.get_error()
            if reason.startswith(LEXER_ERROR):
                self.grammars.spoil(self.grammar)
            kind = GrammarFault if any(ours in reason for ours in OURS) else GrammarTooCostly
            raise kind(_tell(tell(reason)))
        if self._seconds > MASK_SECONDS + TOKEN_SECONDS * self._taken:
            raise GrammarTooCostly(_tell("it takes too long to tell what may follow; make the grammar less ambiguous"))
        return result


def _tell(reason: str) -> str:
    return f"the answer cannot go on in its grammar: {reason}"
