"""The choice of tokens: the formulas in literal numbers, and a row's independence of its neighbours."""

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from engine.row import Choice, Row
from engine.sampling import draw as drawing, table as tables
from engine.sampling.draw import BLOCK, CANDIDATES
from engine.sampling.sampler import NonFiniteLogits, penalize, sample
from models.text import Text
from tests.calls import note_calls
from tests.engine.rows import END_TOKEN, row_of

SHARES = [0.5, 0.3, 0.15, 0.05]


def logits_of(*shares: float) -> Tensor:
    return torch.tensor(shares).log()


def chosen(rows: list[Row], logits: Tensor) -> list[int]:
    found = sample(rows, logits.clone())
    assert all(isinstance(choice, Choice) for choice in found)
    return [choice.token_id for choice in found if isinstance(choice, Choice)]


def tokens_of_seeds(text: Text, seeds: int, shares: list[float], **params: Any) -> list[int]:
    """One token per seed."""
    rows = [row_of(text, prompt=(0,), seed=seed, **params) for seed in range(seeds)]
    return chosen(rows, logits_of(*shares).repeat(seeds, 1))


# Greedy and random


def test_greedy_takes_the_likeliest_and_the_first_of_equals(tiny_text: Text) -> None:
    rows = [row_of(tiny_text, temperature=0.0) for _ in range(3)]
    assert chosen(rows, torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 3.0], [-5.0, -5.0, -5.0]])) == [1, 1, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("params", [{}, {"top_k": 4}])
def test_draws_are_spread_as_the_temperature_says(tiny_text: Text, temperature: float, params: dict[str, Any]) -> None:
    """Chi-square below its 99.9 % bound at three degrees of freedom; seeds are fixed, so this never flickers."""
    found = tokens_of_seeds(tiny_text, 3000, SHARES, temperature=temperature, **params)
    powers = [share ** (1 / temperature) for share in SHARES]
    expected = [3000 * power / sum(powers) for power in powers]
    assert sum((found.count(token) - many) ** 2 / many for token, many in enumerate(expected)) < 16.27


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-9])
@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}])
def test_the_least_temperatures_are_greedy(tiny_text: Text, temperature: float, params: dict[str, Any]) -> None:
    """Logits over such a temperature are infinite, and what was drawn then was the last of the vocabulary."""
    shares = [0.3, 0.5, 0.15, 0.05]
    assert set(tokens_of_seeds(tiny_text, 20, shares, temperature=temperature, **params)) == {1}


CUTS = [  # what no vocabulary of a real size shows; for the others see the draw from a sorted vocabulary below
    ({"top_k": 1000}, {0, 1, 2, 3}),
    ({"top_p": 1e-9}, {0}),
    ({"top_p": 0.0}, {0}),
    ({"min_p": 1.0}, {0}),
    ({"top_k": 3, "top_p": 0.81}, {0, 1}),  # of three that share 1: 0.526, 0.316, 0.158
]


@pytest.mark.parametrize(("params", "kept"), CUTS)
def test_cuts_keep_the_likeliest(tiny_text: Text, params: dict[str, Any], kept: set[int]) -> None:
    assert set(tokens_of_seeds(tiny_text, 300, SHARES, **params)) == kept


def table_of(rows: list[Row]) -> tables.SamplingTable:
    table = tables.SamplingTable()
    table.sync(rows)
    return table


def number_of(seed: int, step: int) -> float:
    return float(tables.uniforms(seed, step, 1)[0])


@pytest.mark.parametrize("params", [{}, {"top_k": 4}])
@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (1 - 2**-53, 2)])
def test_a_token_of_no_probability_is_never_drawn(
    tiny_text: Text, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], number: float, token: int
) -> None:
    monkeypatch.setattr(tables, "uniforms", lambda seed, step, count: np.full(count, number))
    assert chosen([row_of(tiny_text, **params)], logits_of(0.0, 0.6, 0.4, 0.0)[None]) == [token]


@pytest.mark.parametrize("vocab", [BLOCK - 1, BLOCK, 5 * BLOCK + 3])
def test_a_large_vocabulary_is_inverted_as_a_plain_running_sum(tiny_text: Text, vocab: int) -> None:
    torch.manual_seed(vocab)
    logits = torch.randn(40, vocab) * 3
    logits[:, torch.rand(vocab) < 0.3] = -torch.inf
    rows = [row_of(tiny_text, seed=seed) for seed in range(40)]
    ends = logits.softmax(dim=-1).double().cumsum(dim=-1)
    expected = [
        int((ends[place] > number * ends[place, -1]).nonzero()[0])
        for place, number in enumerate(number_of(row.sampling.seed, row.step) for row in rows)
    ]
    assert chosen(rows, logits) == expected


def test_random_numbers_depend_on_seed_and_step_alone() -> None:
    """Literal values: another version of numpy must not change answers to the same seed."""
    found = [number_of(seed, step) for seed, step in [(0, 0), (0, 1), (1, 0), (2**64 - 1, 7)]]
    assert found == [0.011546754286331562, 0.5023796042735054, 0.3035680343067586, 0.6865660636114761]


@given(seed=st.integers(0, 2**64 - 1), step=st.integers(0, 10**6), count=st.integers(1, 70))
def test_numbers_made_ahead_are_those_of_their_own_steps(seed: int, step: int, count: int) -> None:
    assert tables.uniforms(seed, step, count).tolist() == [number_of(seed, step + more) for more in range(count)]


def test_rows_that_come_and_go_keep_their_own_numbers(tiny_text: Text) -> None:
    """A row's numbers are kept by its place, which others take; a step's tokens may be unread."""
    table, rng = tables.SamplingTable(), random.Random(5)
    rows = list[Row]()
    for seed in range(90):
        if rows and rng.random() < 0.4:
            rows[rng.randrange(len(rows))] = rows[-1]
            rows.pop()
        rows.append(row_of(tiny_text, seed=seed, temperature=rng.choice([0.0, 0.5, 1.0])))
        table.sync(rows)
        for row in rows:
            row.generated += [5] * rng.choice([1, 1, 63])
        late = {place for place in range(len(rows)) if rng.random() < 0.3}
        found = table.wishes(table.steps(late), torch.device("cpu"))
        drawing_rows = [(place, row) for place, row in enumerate(rows) if row.sampling.temperature > 0]
        assert [place for place, _ in drawing_rows] == table.draws
        numbers = [number_of(row.sampling.seed, row.step + (place in late)) for place, row in drawing_rows]
        assert found[:, 4].tolist() == numbers
        assert found[:, 0].tolist() == [row.sampling.temperature for _, row in drawing_rows]


# The likeliest alone


def sorted_draw(logits: Tensor, number: float, params: dict[str, Any]) -> int:
    """The definition: all of the vocabulary in order, equals by their ids, then min-p, top-k, top-p and inversion."""
    ordered, tokens = (logits / params["temperature"]).sort(descending=True, stable=True)
    ordered[ordered < ordered[0] + math.log(params["min_p"] or 1e-300)] = -torch.inf
    ordered[params["top_k"] or len(logits) :] = -torch.inf
    shares = ordered.softmax(dim=-1)
    before = shares.cumsum(dim=-1) - shares
    shares[(before >= params["top_p"]) & (before > 0) & (params["top_p"] < 1)] = 0
    ends = shares.double().cumsum(dim=-1)
    return int(tokens[int((ends > number * ends[-1]).nonzero()[0])])


@settings(max_examples=150, deadline=None)
@given(
    spread=st.sampled_from([0.0, 0.3, 3.0, 10.0]),
    grain=st.sampled_from([0.0, 0.0, 0.25, 4.0]),
    masked=st.sampled_from([0.0, 0.5, 0.95]),
    seed=st.integers(0, 10**6),
    params=st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.2, 0.7, 1.0, 2.0]),
            "top_p": st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]),
            "top_k": st.sampled_from([0, 1, 20, CANDIDATES - 1, CANDIDATES, 1000]),
            "min_p": st.sampled_from([0.0, 0.0, 1e-3, 0.1]),
        }
    ),
)
def test_a_draw_among_the_likeliest_is_one_from_the_whole_vocabulary_in_order(
    tiny_text: Text, spread: float, grain: float, masked: float, seed: int, params: dict[str, Any]
) -> None:
    """`grain` rounds the logits, so that many tokens are equally likely, at the border of what is kept too."""
    noise = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(6, 3000, generator=noise)
    logits = (logits / grain).round() * grain if grain else logits
    logits[:, torch.rand(3000, generator=noise) < masked] = -torch.inf
    if params["top_p"] == 1 and not params["top_k"] and not params["min_p"]:
        params = {**params, "top_k": 5}
    rows = [row_of(tiny_text, seed=seed + place, **params) for place in range(6)]
    numbers = [number_of(seed + place, 0) for place in range(6)]
    expected = [sorted_draw(line, number, params) for line, number in zip(logits, numbers, strict=True)]
    assert chosen(rows, logits) == expected


def test_a_vocabulary_is_sorted_only_where_it_must_be(tiny_text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = note_calls(monkeypatch, drawing, "_draw_sorted", lambda logits, wishes: len(logits))
    logits = 3 * torch.randn(4, 3000, generator=torch.Generator().manual_seed(1))
    wishes: Any = {"temperature": 0.2, "top_p": 0.9}, {"top_k": 20}, {"min_p": 0.1}, {"temperature": 2.0, "top_p": 0.99}
    rows = [row_of(tiny_text, seed=3, **wish) for wish in wishes]
    chosen(rows[:3], logits[:3])
    assert sizes == []
    chosen(rows, logits)
    assert sizes == [1]


# What a row asks for


def test_penalties_in_numbers(tiny_text: Text) -> None:
    """Repetition divides what is positive, multiplies what is not; after it come 0.1 for each time said, and 0.5."""
    row = row_of(tiny_text, prompt=(0, 1), repetition_penalty=2.0, frequency_penalty=0.1, presence_penalty=0.5)
    for token in (1, 3, 3, 3):
        row.accept(Choice(token))
    logits = torch.tensor([4.0, 4.0, 4.0, -4.0, -4.0]).repeat(2, 1)
    assert penalize(table_of([row_of(tiny_text), row]), logits) == [1]
    assert logits[0].tolist() == [4, 4, 4, -4, -4]
    expected = [4 / 2, 4 / 2 - 0.1 - 0.5, 4, -4 * 2 - 3 * 0.1 - 0.5, -4]
    assert logits[1].tolist() == pytest.approx(expected)


def test_negative_penalties_and_a_low_repetition_penalty_favour_what_was_said(tiny_text: Text) -> None:
    row = row_of(tiny_text, prompt=(0,), repetition_penalty=0.5, frequency_penalty=-1.0, presence_penalty=-0.5)
    row.accept(Choice(1))
    logits = torch.tensor([[1.0, -1.0, 1.0]])
    penalize(table_of([row]), logits)
    assert logits[0].tolist() == pytest.approx([2.0, -0.5 + 1.0 + 0.5, 1.0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_is_added_and_a_barred_token_cannot_be_chosen(tiny_text: Text, temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, 60.0, 2.0])
    biased = row_of(tiny_text, temperature=temperature, logit_bias=((1, 100.0), (2, -100.0)))
    barred = row_of(tiny_text, temperature=temperature, min_tokens=1, logit_bias=((END_TOKEN, 100.0), (0, 50.0)))
    plain = row_of(tiny_text, temperature=temperature)
    assert chosen([biased, barred, plain], logits.repeat(3, 1)) == [1, 0, 2]


def test_log_probabilities_are_those_of_the_raw_logits(tiny_text: Text) -> None:
    forced = row_of(tiny_text, logprobs=2, logit_bias=((3, 100.0),), temperature=0.1)
    bare = row_of(tiny_text, logprobs=0, temperature=0.0)
    silent = row_of(tiny_text, temperature=0.0)
    found = sample([forced, bare, silent], (logits_of(*SHARES) + 7).repeat(3, 1))
    reports = [choice.logprob for choice in found if isinstance(choice, Choice)]
    assert reports[0] is not None and reports[1] is not None and reports[2] is None
    assert (reports[0].token_id, reports[0].rank) == (3, 4)
    assert [token for token, _ in reports[0].top] == [0, 1]
    numbers = [reports[0].logprob, *(value for _, value in reports[0].top)]
    assert numbers == pytest.approx([math.log(0.05), math.log(0.5), math.log(0.3)], abs=1e-5)
    assert reports[1] == replace(reports[0], token_id=0, logprob=reports[0].top[0][1], rank=1, top=())


# Neighbours


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_p": 0.5, "logprobs": 1, "min_tokens": 1}])
def test_a_value_that_is_no_number_ends_its_own_row_alone(tiny_text: Text, bad: float, params: dict[str, Any]) -> None:
    rows = [row_of(tiny_text, seed=seed, **params) for seed in range(3)]
    healthy = torch.tensor([0.0, 1.0, 5.0, 0.5])
    poisoned = healthy.clone()
    poisoned[3] = bad
    found = sample(rows, torch.stack([healthy, poisoned, healthy]))
    assert isinstance(found[1], NonFiniteLogits)
    alone = sample([rows[0], rows[2]], torch.stack([healthy, healthy]))
    assert [found[0], found[2]] == alone


def test_a_row_without_any_possible_token_has_none(tiny_text: Text) -> None:
    (found,) = sample([row_of(tiny_text)], torch.full((1, 4), -math.inf))
    assert isinstance(found, NonFiniteLogits)


def mixed_rows(text: Text) -> list[Row]:
    """Rows that ask for all sorts of things, some of them in mid-answer."""
    wishes: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"temperature": 1.5, "top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1, "temperature": 2.0},
        {"top_k": 20, "top_p": 0.9, "min_p": 0.01},
        {"repetition_penalty": 1.3, "presence_penalty": 0.4},
        {"temperature": 0.0, "frequency_penalty": 0.9, "logprobs": 3},
        {"min_tokens": 3, "logit_bias": ((7, 5.0),), "logprobs": 0},
    ]
    rows = [row_of(text, seed=seed, **wish) for seed, wish in enumerate(wishes * 2)]
    for row in rows[len(wishes) :]:
        row.accept(Choice(11))
    return rows


@settings(max_examples=40, deadline=None)
@given(order=st.permutations(range(18)), size=st.integers(1, 18), seed=st.integers(0, 1000))
def test_a_rows_token_depends_on_no_neighbour(tiny_text: Text, order: list[int], size: int, seed: int) -> None:
    rows = mixed_rows(tiny_text)
    logits = 3 * torch.randn(18, 50, generator=torch.Generator().manual_seed(seed))
    alone = [chosen([row], logits[place : place + 1])[0] for place, row in enumerate(rows)]
    some = order[:size]
    assert chosen([rows[place] for place in some], logits[some]) == [alone[place] for place in some]
