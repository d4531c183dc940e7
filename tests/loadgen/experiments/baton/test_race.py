from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from loadgen.experiments.baton.paper import BATON, BATON_PD, BENCHMARK, PD, STRATEGIES, TARGETS
from loadgen.experiments.baton.queries import draw_queries
from loadgen.experiments.baton.race import Race, race
from loadgen.experiments.baton.report import make_page, make_plots
from loadgen.experiments.baton.results import Table, lines_of, table_json
from loadgen.html.plot import Point
from models.network.loader import LoadedModel
from models.text import Text
from tests.loadgen.experiments.engine.parts import subject_of, ticking

JOBS = draw_queries(TARGETS[1], 8, 1 / 200, 300, seed=1)
OUTPUTS = [job.output_len for job in JOBS]


@pytest.fixture(scope="module")
def races(tiny_model: LoadedModel, tiny_text: Text) -> dict[str, Race]:
    return {method: race(subject_of(tiny_model, tiny_text), method, 4, JOBS, ticking()) for method in STRATEGIES}


def test_all_methods_give_the_same_answers(races: dict[str, Race]) -> None:
    assert [len(answer) for answer in races[BENCHMARK].answers] == OUTPUTS
    assert len({one.answers for one in races.values()}) == 1


def test_only_closed_batches_waste_tokens_and_only_entry_by_embedding_saves_padding(races: dict[str, Race]) -> None:
    wasted = sum(4 * max(batch) - sum(batch) for batch in (OUTPUTS[:4], OUTPUTS[4:]))
    assert [races[method].tally.invalid for method in STRATEGIES] == [wasted, wasted, 0, 0]
    assert races[BATON].tally.pad > races[BATON_PD].tally.pad
    assert races[PD].tally.pad <= races[BENCHMARK].tally.pad


def test_curves_end_with_everything_done_and_the_last_memory_freed(races: dict[str, Race]) -> None:
    for one in races.values():
        assert one.curves["completed"][0] == Point(0, 0)
        assert one.curves["completed"][-1] == Point(one.seconds, len(JOBS))
        assert one.curves["tokens"][-1] == Point(one.seconds, sum(OUTPUTS))
        assert one.curves["kv_bytes"][-1].y == 0 < one.peak_kv_bytes
        assert [point.y for point in one.curves["tokens"]] == sorted(point.y for point in one.curves["tokens"])


def table_of(races: dict[str, Race]) -> Table:
    return Table("Target-1 <x>", {4: 0.01}, {4: lines_of(list(races.values()), TARGETS[1].seconds)})


def test_lines_stand_next_to_the_papers(races: dict[str, Race]) -> None:
    timed = zip(races.items(), (8, 4, 2, 1), strict=True)
    table = table_of({name: replace(one, seconds=seconds) for (name, one), seconds in timed})
    lines = table.lines[4]
    assert [line.method for line in lines] == [BENCHMARK, PD, BATON, BATON_PD]
    assert [line.speedup for line in lines] == [1, 2, 4, 8]
    assert [line.paper_seconds for line in lines] == [21_901, 21_781, 20_549, 11_771]
    assert lines[3].paper_speedup == pytest.approx(1.8606, abs=1e-4)
    assert table.different_answers == 0


def test_an_answer_that_differs_in_any_round_is_counted(races: dict[str, Race]) -> None:
    answers = races[BATON].answers
    other = replace(races[BATON], answers=(answers[0][:-1], *answers[1:]))
    lines = lines_of([*races.values(), other], TARGETS[1].seconds)
    assert [line.same_answers for line in lines] == [8, 8, 7, 8]
    assert Table("t", {4: 1.0}, {4: lines}).different_answers == 1


def test_the_page_is_whole_and_shows_every_method_in_every_plot(races: dict[str, Race]) -> None:
    table = table_of(races)
    text = make_page([table], {"model": "<tiny>"})
    body = ElementTree.fromstring(text[text.index("<body>") : text.index("</html>")])
    assert len(list(body.iter("tr"))) == 1 + len(STRATEGIES)
    drawn = list(body.iter("svg"))
    assert len(drawn) == 3
    for one in drawn:
        assert set(STRATEGIES) < {text.text for text in one.iter("text")}
        assert all(method in (one.findtext("desc") or "") for method in STRATEGIES)
    assert "&lt;tiny&gt;" in text and "<script" not in text and "href" not in text
    assert [plot.title.split(",")[0] for plot in make_plots(table)] == [
        "Queries completed",
        "Tokens generated",
        "K and V in the running batch",
    ]


def test_saved_figures_have_the_curves(races: dict[str, Race]) -> None:
    saved: dict[str, Any] = table_json(table_of(races))
    (batch,) = saved["batches"]
    assert batch["batch_size"] == 4 and len(batch["lines"]) == 4
    assert batch["lines"][0]["curves"]["completed"][-1][1] == len(JOBS)
