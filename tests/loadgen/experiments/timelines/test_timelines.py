"""The pictures of families: that they show what happened, and that those in the documents are today's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadgen.experiments.timelines.families import FAMILIES, SHORT, play
from loadgen.experiments.timelines.picture import draw

FOLDER = Path(__file__).parents[4] / "docs/families"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_request_is_held_from_its_begin_to_its_end_and_never_more_than_fit(name: str) -> None:
    family = FAMILIES[name]
    for timeline in play(family):
        assert len(timeline.lines) == len(family.load)
        held = [span for line in timeline.lines for span in line.held]
        assert all(line.arrival <= line.held[0][0] and line.held[-1][1] <= line.end for line in timeline.lines)
        ahead = 2  # rows whose prompts are read before a slot is free
        most = max(sum(begin <= moment < end for begin, end in held) for moment, _ in held)
        assert most <= family.workers * (family.slots + ahead)


def test_the_pictures_show_by_what_families_differ() -> None:
    vs, _, joining = play(FAMILIES["closed-batches"])
    short = [line for line in vs.lines if line.output_length == SHORT]
    assert sum(line.end > line.held[-1][1] for line in short) > len(short) / 2
    assert all(line.end == line.held[-1][1] for line in joining.lines)
    sls, scls, _ = play(FAMILIES["slices"])
    assert {len(line.held) for line in sls.lines} == {1} and max(len(line.held) for line in scls.lines) > 2
    fcfs, srpt, default = play(FAMILIES["orders"])
    assert srpt.mean < fcfs.mean and default.mean < fcfs.mean
    assert [len(line.held) for line in srpt.lines].count(2) and {len(line.held) for line in default.lines} == {1}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_pictures_of_the_documents_are_those_of_today(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text("utf-8") == draw(play(FAMILIES[name])), "run `make docs`"


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_has_a_page_that_shows_it_and_names_what_is_shown(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text("utf-8")
    assert f"]({name}.svg)" in text
    assert set(FAMILIES[name].strategies) <= set(re.findall(r"`([\w-]+)`", text))
