"""Grammars and the rows' ways through them: what may follow, what is kept, what is told of a bad one."""

import gc
import json
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from engine.sampling import grammar as module
from engine.sampling.grammar import Compiled, GrammarError, GrammarFault, Grammars, GrammarTooCostly, Matcher
from engine.sampling.params import Grammar, GrammarKind
from engine.sampling.sampler import unpack
from models.text import Text
from tests.engine.sampling.bombs import BOMBS, REAL, SLOW_MASKS
from tests.engine.sampling.grammars import END_TOKEN, LARK, PERSON, REGEX, grammars_of, schema
from tests.tiny import Net


@pytest.fixture(scope="module")
def grammars(net: Net) -> Grammars:
    return grammars_of(*net)


def tokens_of(matcher: Matcher, tokens: list[int], barred: frozenset[int] = frozenset()) -> set[int]:
    """Tokens that may follow an answer."""
    return set(np.flatnonzero(np.unpackbits(matcher.allowed(tokens, barred), bitorder="little")).tolist())


def texts_of(matcher: Matcher, text: Text, tokens: list[int]) -> set[str]:
    return {text.token_text(token) for token in tokens_of(matcher, tokens)}


def accepts(grammars: Grammars, grammar: Grammar, text: Text, answer: str) -> bool:
    """Whether the grammar lets an answer be said, and end."""
    matcher, tokens = Matcher(grammars, grammar), text.encode(answer)
    try:
        matcher.follow(tokens)
    except GrammarFault:
        return False
    return matcher.complete or END_TOKEN in tokens_of(matcher, tokens)


MATCHES = [
    (PERSON, ['{"name": "Ada", "age": 36}', '{\n  "name": "",\n  "age": -1\n}'], ['{"age": 36}', '{"name": 1}', "x"]),
    (REGEX, ["yes", "no"], ["yess", "maybe", ""]),
    (LARK, ["ab", "abab"], ["a", "ba"]),
]


@pytest.mark.parametrize(("grammar", "right", "wrong"), MATCHES, ids=["schema", "regex", "lark"])
def test_an_answer_is_let_through_if_it_matches(
    grammars: Grammars, tiny_text: Text, grammar: Grammar, right: list[str], wrong: list[str]
) -> None:
    assert [accepts(grammars, grammar, tiny_text, one) for one in right] == [True] * len(right)
    assert [accepts(grammars, grammar, tiny_text, one) for one in wrong] == [False] * len(wrong)


KAWI_ONE = "\U00011f51"
"""A digit since Unicode 15: to clients whose libraries are older, no digit."""


CLASSES = [
    (r"\d{2}", ["07"], ["0\u0667", KAWI_ONE * 2]),
    (r"[\dx]+", ["0x7"], ["\u0667", "y"]),
    (r"[^\d]", ["x", "\u0667"], ["7"]),
    (r"\D", ["x", "\u0667"], ["7"]),
    (r"\w+", ["a_1"], ["\u00e9", KAWI_ONE, "-"]),
    (r"\W", ["-", "\u00e9"], ["a"]),
    (r"\\d", [r"\d"], ["7", r"\7"]),
    (r"\\\d", [r"\7"], [r"\d"]),
]


@pytest.mark.parametrize(("pattern", "right", "wrong"), CLASSES)
def test_classes_of_patterns_are_those_of_json_schema(
    grammars: Grammars, tiny_text: Text, pattern: str, right: list[str], wrong: list[str]
) -> None:
    bare, quoted = Grammar(GrammarKind.REGEX, pattern), schema({"type": "string", "pattern": f"^(?:{pattern})$"})
    for one in (*right, *wrong):
        found = (accepts(grammars, bare, tiny_text, one), accepts(grammars, quoted, tiny_text, dumped(one)))
        assert found == (one in right, one in right), one


def dumped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def test_white_space_between_the_tokens_of_json_is_bounded(grammars: Grammars, tiny_text: Text) -> None:
    """A model that does not know what to say next would fill the whole answer with it."""
    assert accepts(grammars, PERSON, tiny_text, '{\n    "name": "", "age": 1}')
    assert not accepts(grammars, PERSON, tiny_text, '{  "name": "", "age": 1}')
    assert not accepts(grammars, PERSON, tiny_text, '{\n\n"name": "", "age": 1}')


def test_only_the_end_token_may_follow_what_may_end_there_alone(grammars: Grammars, tiny_text: Text) -> None:
    matcher = Matcher(grammars, Grammar(GrammarKind.REGEX, "ab?"))
    assert texts_of(matcher, tiny_text, []) == {"a"}
    answer = tiny_text.encode("a")
    assert texts_of(matcher, tiny_text, answer) == {"b", "<|im_end|>"}
    assert not matcher.complete
    matcher.follow([*answer, *tiny_text.encode("b")])
    assert matcher.complete


def test_the_end_token_completes_an_answer_that_could_go_on(grammars: Grammars, tiny_text: Text) -> None:
    matcher = Matcher(grammars, Grammar(GrammarKind.REGEX, "a*"))
    matcher.follow([*tiny_text.encode("a"), END_TOKEN])
    assert matcher.complete


def test_what_is_barred_is_left_out_unless_nothing_else_may_follow(grammars: Grammars, tiny_text: Text) -> None:
    (letter,) = tiny_text.encode("b")
    matcher, answer = Matcher(grammars, Grammar(GrammarKind.REGEX, "ab?")), tiny_text.encode("a")
    assert tokens_of(matcher, answer, frozenset({END_TOKEN})) == {letter}
    assert tokens_of(matcher, answer, frozenset({END_TOKEN, letter})) == {END_TOKEN, letter}


def test_a_token_that_is_not_allowed_is_a_fault_now_and_ever_after(grammars: Grammars, tiny_text: Text) -> None:
    matcher = Matcher(grammars, REGEX)
    with pytest.raises(GrammarFault, match="cannot go on") as fault:
        matcher.follow(tiny_text.encode("q"))
    assert not fault.value.by_client, "it is the sampler's"
    with pytest.raises(GrammarFault):
        matcher.allowed([], frozenset())


def test_a_matcher_that_begins_late_catches_up(grammars: Grammars, tiny_text: Text) -> None:
    tokens = tiny_text.encode('{"name": "Ada')
    early, late = Matcher(grammars, PERSON), Matcher(grammars, PERSON)
    for count in range(len(tokens) + 1):
        early.follow(tokens[:count])
    assert tokens_of(early, tokens) == tokens_of(late, tokens)


# What is kept


def test_a_grammar_is_compiled_once(net: Net) -> None:
    grammars = grammars_of(*net)
    assert grammars.compile(PERSON) is grammars.compile(schema(json.loads(PERSON.text)))


def test_only_so_many_are_kept_besides_those_in_use(net: Net) -> None:
    grammars = grammars_of(*net, size=2)
    held = grammars.compile(PERSON)
    for length in range(1, 6):
        grammars.compile(Grammar(GrammarKind.REGEX, f"a{{{length}}}"))
    gc.collect()
    assert len(grammars._known) == 3
    assert grammars.compile(PERSON) is held
    del held
    for length in range(1, 6):
        grammars.compile(Grammar(GrammarKind.REGEX, f"a{{{length}}}"))
    gc.collect()
    assert len(grammars._known) == 2


def test_threads_may_compile_and_copy_side_by_side(net: Net) -> None:
    grammars, tokens = grammars_of(*net, size=1), net.text.encode('{"name"')

    def work(number: int) -> None:
        for turn in range(20):
            Matcher(grammars, PERSON).follow(tokens)
            grammars.compile(Grammar(GrammarKind.REGEX, f"a{{{1 + (number + turn) % 5}}}"))

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(work, range(4)))) == 4


# What is wrong with a grammar


BAD = [
    (schema({"type": "strange"}), "strange"),
    (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    (schema({"type": "integer", "minimum": 2, "maximum": 1}), "minimum"),
    (schema({"$ref": "http://example.org/other"}), "example.org"),
    (Grammar(GrammarKind.JSON_SCHEMA, "{"), "end of data"),
    (Grammar(GrammarKind.REGEX, "a("), "unclosed"),
    (Grammar(GrammarKind.REGEX, "(?=a)b"), "look-ahead"),
    (Grammar(GrammarKind.LARK, "start: nothing"), "nothing"),
    (Grammar(GrammarKind.LARK, 'root ::= "a"'), "Expected"),
    (Grammar(GrammarKind.REGEX, r"[^\s\S]"), "^no text matches it$"),
    (Grammar(GrammarKind.REGEX, "[a&&b]c"), "^no text matches it$"),
    (Grammar(GrammarKind.LARK, r"start: /[^\s\S]/"), "^no text matches it$"),
    (Grammar(GrammarKind.LARK, 'start: start "a"'), "^no text matches it$"),
]


@pytest.mark.parametrize(("grammar", "said"), BAD, ids=[grammar.text[:30] for grammar, _ in BAD])
def test_a_bad_grammar_is_told_in_one_line(grammars: Grammars, grammar: Grammar, said: str) -> None:
    with pytest.raises(GrammarError, match=said) as caught:
        grammars.compile(grammar)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


def test_a_tokenizer_that_the_library_cannot_read_is_told_to_the_client() -> None:
    with pytest.raises(GrammarError, match="cannot be constrained"):
        Grammars(lambda: '{"model": "of a kind that nobody knows"}', 10, {1}).compile(REGEX)


@pytest.mark.parametrize("grammar", REAL.values(), ids=REAL)
def test_what_real_programs_send_is_compiled(grammars: Grammars, grammar: Grammar) -> None:
    assert isinstance(grammars.compile(grammar), Compiled)


def test_a_panic_of_the_library_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """The client was told addresses inside the server."""
    said = module.tell("panic: index out of bounds at /root/.cargo/registry/llguidance/src/earley/grammar.rs:12")
    assert said == "is too large or too complex; shorten it"
    assert "grammar.rs" in caplog.text


def test_a_grammar_is_refused_while_those_in_use_take_all_the_memory(net: Net) -> None:
    grammars = grammars_of(*net, size=0, held=100)
    held = grammars.compile(PERSON, 60)
    with pytest.raises(module.GrammarsFull, match="try again later"):
        grammars.compile(REGEX, 50)
    assert grammars.compile(PERSON, 60) is held, "one that is known needs none"
    del held
    gc.collect()
    grammars.compile(REGEX, 50)


# What takes long


def walk(grammars: Grammars, grammar: Grammar, steps: int = 200) -> tuple[float, str | None]:
    """Seconds of the thread that the masks of a long answer take, and what ends it early."""
    matcher, random, answer, begin = Matcher(grammars, grammar), Random(0), list[int](), time.thread_time()
    try:
        for _ in range(steps):
            follows = sorted(tokens_of(matcher, answer) - {END_TOKEN})
            answer.append(random.choice(follows))
    except GrammarFault as fault:
        return time.thread_time() - begin, str(fault)
    return time.thread_time() - begin, None


@pytest.mark.parametrize("name", ["ambiguous by two", "ambiguous by six", "ambiguous letters"])
def test_masks_that_take_long_end_their_row_soon(grammars: Grammars, name: str) -> None:
    """One such row took up to 0.2 s of each of its neighbours' steps, and this one would take seconds."""
    seconds, said = walk(grammars, SLOW_MASKS[name])
    assert said is not None and "takes too long to tell what may follow" in said
    assert seconds < 20 * module.MASK_SECONDS


def test_a_row_may_take_a_time_that_grows_with_its_answer(grammars: Grammars, tiny_text: Text) -> None:
    mask, token = module.MASK_SECONDS, module.TOKEN_SECONDS
    clock = iter([0.0, 0.9 * mask, 1.0, 1.0 + 0.1 * mask, 2.0, 2.0 + token, 3.0, 3.1])
    matcher = Matcher(grammars, Grammar(GrammarKind.REGEX, "a*"), lambda: next(clock))
    answer = tiny_text.encode("a")
    matcher.allowed([], frozenset())
    matcher.allowed(answer, frozenset())
    with pytest.raises(GrammarTooCostly, match="takes too long"):
        matcher.follow([*answer, *answer])


def test_a_token_that_ends_too_many_alternatives_is_the_client_s_fault(grammars: Grammars, tiny_text: Text) -> None:
    """It was answered 500, as if the server had failed."""
    matcher = Matcher(grammars, BOMBS["many references"])
    with pytest.raises(GrammarTooCostly, match="items"):
        matcher.follow(tiny_text.encode("{}"))


def test_a_grammar_whose_lexer_has_failed_is_compiled_anew(net: Net) -> None:
    """All its rows share the lexer, so it failed at once in every later call."""
    grammars, grammar = grammars_of(*net), SLOW_MASKS["a memory of sixty letters"]
    first = grammars.compile(grammar)
    grammars.spoil(grammar)
    assert grammars.compile(grammar) is first, "rows of calls that were taken in end like the first"
    del first
    gc.collect()
    assert grammar not in grammars._known


# Bits


@given(st.lists(st.lists(st.booleans(), min_size=64, max_size=64), min_size=1, max_size=4), st.integers(1, 64))
def test_bits_become_booleans(rows: list[list[bool]], width: int) -> None:
    packed = torch.from_numpy(np.packbits(np.array(rows), axis=1, bitorder="little"))
    assert unpack(packed, width).tolist() == [row[:width] for row in rows]
