"""Rows with a grammar in a running batch: their answers match it, and nobody else notices."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.kv.host_store import HostStore
from engine.messages import NEVER, BatchPolicy, Cause, Entry, FinishReason, RowId, RowSpec, RowUpdate
from engine.row import Row
from engine.sampling.grammar import Compiled, Grammars
from engine.sampling.params import Grammar, GrammarKind
from models.network.loader import load
from models.text import Text
from tests.engine.rows import answers_of, default_folder, ends_of, finish, greedy, lifecycle_of, spec, tokens_of, turns
from tests.engine.sampling.grammars import LARK, PERSON, REGEX, SCHEMAS, check_answer, schema
from tests.reference import Reference
from tests.tiny import Net

GRAMMARS = [*(schema(one) for one in SCHEMAS.values()), REGEX, LARK]


def constrained(row_id: RowId, grammar: Grammar, **sampling: Any) -> RowSpec:
    """A row that samples at temperature 1 from a grammar."""
    given = {"temperature": 1.0, "seed": row_id, "ignore_eos": False, "grammar": grammar, **sampling}
    return replace(spec(row_id, 3 + row_id % 5), sampling=greedy(**{"max_tokens": 400, **given}))


def texts_of(updates: list[RowUpdate]) -> dict[RowId, str]:
    found: dict[RowId, str] = {}
    for update in updates:
        found[update.row_id] = found.get(update.row_id, "") + update.text
    return found


@pytest.mark.parametrize("grammar", GRAMMARS, ids=[*SCHEMAS, "regex", "lark"])
def test_whatever_is_sampled_matches_the_grammar(net: Net, grammar: Grammar) -> None:
    lifecycle = lifecycle_of(*net, capacity=10_000, rows=16)
    updates = finish(lifecycle, [constrained(row_id, grammar) for row_id in range(16)])
    assert set(ends_of(updates).values()) == {FinishReason.STOP}
    answers = texts_of(updates)
    assert len(answers) == 16
    for answer in answers.values():
        check_answer(answer, grammar)


PARAMETERS = [
    {"temperature": 0.0},
    {"temperature": 2.0},
    {"top_k": 3},
    {"top_p": 0.5},
    {"min_p": 0.5},
    {"repetition_penalty": 3.0, "frequency_penalty": 2.0, "presence_penalty": -2.0},
    {"logit_bias": ((5, 100.0), (60, -100.0), (70, 100.0))},
    {"logprobs": 3, "prompt_logprobs": 1},
    {"ignore_eos": True},
    {"min_tokens": 300},
    {"stop_token_ids": (40, 41, 42)},
]


@pytest.mark.parametrize("sampling", PARAMETERS, ids=lambda sampling: next(iter(sampling)))
def test_no_other_parameter_leads_out_of_the_grammar(net: Net, sampling: dict[str, Any]) -> None:
    grammars = [schema(SCHEMAS["person"]), schema(SCHEMAS["enum"]), REGEX]
    lifecycle = lifecycle_of(*net, capacity=10_000, rows=9)
    updates = finish(lifecycle, [constrained(row_id, grammars[row_id % 3], **sampling) for row_id in range(9)])
    assert set(ends_of(updates).values()) == {FinishReason.STOP}
    if "stop_token_ids" not in sampling:  # which may end it in the middle: that is what the client asked for
        for row_id, answer in texts_of(updates).items():
            check_answer(answer, grammars[row_id % 3])


def test_a_row_ends_with_the_last_token_that_its_grammar_allows(net: Net) -> None:
    """No step is spent on an end token that is the only choice."""
    updates = finish(lifecycle_of(*net), [constrained(0, Grammar(GrammarKind.REGEX, "abc"))])
    tokens = tokens_of(updates)[0]
    assert net.text.decode(tokens) == "abc" and 2 not in tokens
    assert updates[-1].finish_reason is FinishReason.STOP


def test_an_answer_that_is_cut_short_says_so(net: Net) -> None:
    specs = [constrained(0, PERSON, max_tokens=3), constrained(1, PERSON, stop=("na",))]
    updates = finish(lifecycle_of(*net), specs)
    assert ends_of(updates) == {0: FinishReason.LENGTH, 1: FinishReason.STOP}
    assert texts_of(updates)[1] in ('{"', '{\n"', '{ "') or texts_of(updates)[1].strip(' \t\n{"') == ""


def test_plain_rows_beside_constrained_ones_say_what_they_say_alone(net: Net, tiny_reference: Reference) -> None:
    plain = [spec(row_id, 4 + row_id, max_tokens=30, temperature=row_id % 2, seed=row_id) for row_id in range(6)]
    bound = [constrained(row_id, GRAMMARS[row_id % len(GRAMMARS)]) for row_id in range(6, 12)]
    mixed = [one for pair in zip(plain, bound, strict=True) for one in pair]
    tokens = answers_of(lifecycle_of(*net, capacity=10_000, rows=12), mixed)
    for one in plain:
        assert tokens[one.row_id] == tiny_reference.generate(one)
    for one in bound:
        assert tokens[one.row_id] == answers_of(lifecycle_of(*net), [one])[one.row_id]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kept_from", [0, NEVER], ids=["kept", "recomputed"])
def test_rows_that_are_paused_handed_back_and_moved_go_on_in_their_grammar(net: Net, seed: int, kept_from: int) -> None:
    """Two devices with little memory take the rows from each other at random."""
    rng, store = random.Random(seed), HostStore[Row]()
    specs = {row_id: constrained(row_id, rng.choice(GRAMMARS)) for row_id in range(8)}
    grammars = Grammars(net.text.to_json, net.model.vocab_size, net.model.end_token_ids)
    devices = [lifecycle_of(*net, capacity=300, rows=3, chunk=64, store=store, grammars=grammars) for _ in range(2)]
    terms = [BatchPolicy(entry=entry, kept_from=kept_from) for entry in Entry]
    for row_id, one in specs.items():
        devices[row_id % 2].table.admit([one], rng.choice(terms))
    tokens: dict[RowId, list[int]] = {row_id: [] for row_id in specs}
    reasons: dict[RowId, FinishReason] = {}
    causes: set[Cause] = set()
    while not all(device.table.idle for device in devices):
        for place, device in enumerate(devices):
            if rng.random() < 0.1:
                device.table.pause(rng.sample(sorted(specs), 2))
            updates = turns(device)
            reasons |= ends_of(updates)
            for update in updates:
                tokens[update.row_id] += update.token_ids
            for handed_back in device.table.take_handed_back():
                causes.add(handed_back.cause)
                other = devices[(place + rng.randint(0, 1)) % 2]
                other.table.admit([specs[row_id] for row_id in handed_back.row_ids], rng.choice(terms))
    assert causes == {Cause.PAUSE}
    assert set(reasons.values()) == {FinishReason.STOP}
    for row_id, one in specs.items():
        assert tokens[row_id] == answers_of(lifecycle_of(*net), [one])[one.row_id]
        assert one.sampling.grammar is not None
        check_answer(net.text.decode(tokens[row_id]), one.sampling.grammar)


class Broken(Grammars):
    """One of whose grammars cannot be followed: its matcher has gone wrong already."""

    def compile(self, grammar: Grammar, size: int = 0) -> Compiled:
        compiled = super().compile(grammar, size)
        if grammar is REGEX:
            start = compiled.start.deep_copy()
            start.consume_token(0)
            return Compiled(grammar, start, size)
        return compiled


def test_a_fault_in_a_matcher_ends_its_row_alone(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    def run(grammars: Callable[..., Grammars]) -> list[RowUpdate]:
        made = grammars(net.text.to_json, net.model.vocab_size, net.model.end_token_ids)
        rows = [spec(0, max_tokens=20), constrained(1, REGEX), constrained(2, PERSON)]
        return finish(lifecycle_of(*net, capacity=5000, chunk=64, grammars=made), rows)

    sound, updates = tokens_of(run(Grammars)), run(Broken)
    assert ends_of(updates) == {0: FinishReason.LENGTH, 1: FinishReason.ERROR, 2: FinishReason.STOP}
    (failed,) = [update for update in updates if update.row_id == 1]
    assert failed.error is not None and "cannot go on in its grammar" in failed.error
    assert all(tokens_of(updates)[row_id] == sound[row_id] for row_id in (0, 2))
    assert "rows failed" in caplog.text


def test_a_grammar_that_nobody_compiled_before_and_that_is_wrong_ends_its_row_alone(net: Net) -> None:
    updates = finish(lifecycle_of(*net), [spec(0), constrained(1, Grammar(GrammarKind.REGEX, "("))])
    assert ends_of(updates) == {0: FinishReason.LENGTH, 1: FinishReason.ERROR}


@pytest.mark.usefixtures("all_cores")
def test_a_real_model_s_answers_match_their_schemas() -> None:
    folder = default_folder()
    model, text = load(folder), Text.load(folder)
    prompt = tuple(text.encode_chat([{"role": "user", "content": "Invent something and describe it as JSON."}]))
    short = [schema(SCHEMAS[name]) for name in ("person", "enum", "list")]
    specs = [replace(constrained(place, one, max_tokens=100), prompt=prompt) for place, one in enumerate(short)]
    lifecycle = lifecycle_of(model, text, capacity=800, rows=len(specs), chunk=256)
    lifecycle.table.admit(specs)
    updates = [update for _ in iter(lambda: lifecycle.table.idle, True) for update in lifecycle.turn()]
    assert set(ends_of(updates).values()) == {FinishReason.STOP}
    for row_id, answer in texts_of(updates).items():
        grammar = specs[row_id].sampling.grammar
        assert grammar is not None
        check_answer(answer, grammar)
