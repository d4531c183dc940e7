"""What is too large to be compiled is refused before it is, and what real programs send is not."""

from __future__ import annotations

import time

import pytest

from engine.messages import Grammar, GrammarKind
from engine.sampling.grammar import Compiled, GrammarError, Grammars
from engine.sampling.grammar_bounds import require_bounds
from models.network.loader import LoadedModel
from models.text import Text
from tests.engine.sampling.bombs import BOMBS, REAL, chain, lark
from tests.engine.sampling.grammars import grammars_of, schema


@pytest.fixture(scope="module")
def grammars(tiny_model: LoadedModel, tiny_text: Text) -> Grammars:
    return grammars_of(tiny_model, tiny_text)


@pytest.mark.parametrize(("grammar", "bound"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_with_the_bound_that_it_exceeds(grammars: Grammars, grammar: Grammar, bound: str) -> None:
    with pytest.raises(GrammarError, match=bound) as caught:
        grammars.compile(grammar)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


@pytest.mark.parametrize("grammar", REAL.values(), ids=REAL)
def test_what_real_programs_send_is_compiled(grammars: Grammars, grammar: Grammar) -> None:
    assert isinstance(grammars.compile(grammar), Compiled)


def test_a_bound_is_found_without_doing_what_it_is_there_to_prevent() -> None:
    """In the processor's time, as machines that run tests are busy. Compiled, the last takes tens of seconds."""
    start = time.process_time()
    for grammar, bound in BOMBS.values():
        if bound != "Too many items":  # which is found at the first step
            with pytest.raises(GrammarError):
                require_bounds(grammar)
    assert time.process_time() - start < 5


def test_a_bound_is_told_with_its_value_and_its_limit() -> None:
    with pytest.raises(
        GrammarError, match="^has 1025 rules and terminals, and 1024 is the most that is taken; use few"
    ):
        require_bounds(lark(*(f'rule{number}: "x"' for number in range(1025))))


def test_a_circle_of_references_is_no_depth() -> None:
    """With a hundred definitions that all refer to each other there are more ways than could ever be followed."""
    names = [f"#/$defs/d{number}" for number in range(40)]
    links = {f"d{number}": {"anyOf": [{"$ref": name} for name in names]} for number in range(40)}
    require_bounds(schema({"$defs": links, "$ref": "#/$defs/d0"}))


@pytest.mark.parametrize("words", [{"description": "of a chain"}, {"title": "d", "default": 3}])
def test_what_only_describes_is_not_merged(words: dict[str, object]) -> None:
    require_bounds(chain(200, lambda one: {**one, **words}))


def test_a_reference_out_of_the_schema_is_refused() -> None:
    for reference, said in (("other.json", "leads out"), ("#/$defs/none", "leads nowhere"), ("#name", "leads nowhere")):
        with pytest.raises(GrammarError, match=said):
            require_bounds(schema({"$ref": reference}))
    require_bounds(
        schema({"$id": "https://a.example/b", "$ref": "https://a.example/b#/$defs/a~1b", "$defs": {"a/b": {}}})
    )


def test_nothing_matches_is_told_when_the_grammar_comes(grammars: Grammars) -> None:
    """It was found at the row's first step, which failed with status 500."""
    with pytest.raises(GrammarError):
        grammars.compile(Grammar(GrammarKind.REGEX, r"[^\s\S]"))
