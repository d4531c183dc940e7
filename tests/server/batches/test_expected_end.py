"""When a batch is expected to end, by hand and with lines that take what they take."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from server.batches.expected_end import ExpectedEnd


def expected_end(works: Mapping[str, float], part_done: Callable[[str], float], now: float) -> ExpectedEnd:
    """Told the work of all lines."""
    end = ExpectedEnd(part_done, now)
    for line, work in works.items():
        end.expect(line, work)
    end.all_known = True
    return end


def test_nothing_is_told_before_there_is_a_speed() -> None:
    end = expected_end({"a": 10.0}, lambda line: 0.0, 100.0)
    end.ask("a")
    assert end.seconds_left(105.0) is None


def test_nothing_is_told_by_the_first_tokens() -> None:
    """While the others' prompts were read, the end of the first line was told to be minutes away, and so all ends."""
    done = {"a": 0.009, "b": 0.0}
    end = expected_end({"a": 100.0, "b": 1.0}, done.__getitem__, 0.0)
    end.ask("a")
    assert end.seconds_left(1.0) is None
    done["a"] = 0.0202
    assert end.seconds_left(2.0) == pytest.approx(98.0)


def test_nothing_is_told_while_lines_are_still_estimated() -> None:
    end = ExpectedEnd({"a": 1 / 2}.__getitem__, 100.0)
    end.expect("a", 10.0)
    end.ask("a")
    assert end.seconds_left(105.0) is None
    end.all_known = True
    assert end.seconds_left(105.0) == pytest.approx(5.0)


def test_what_lines_under_way_have_generated_counts() -> None:
    """A third of one line of two was made in 5 s: so was a sixth of all."""
    end = expected_end({"a": 10.0, "b": 10.0}, {"a": 1 / 3}.__getitem__, 100.0)
    end.ask("a")
    assert end.seconds_left(105.0) == pytest.approx(25.0)


def test_the_speed_is_that_of_the_last_minute() -> None:
    """A line a second for two minutes, since then one in ten seconds."""
    lines = [str(place) for place in range(1000)]
    end, now = expected_end(dict.fromkeys(lines, 1.0), lambda line: 0.0, 0.0), 0.0
    for place, line in enumerate(lines[:180]):
        now += 1.0 if place < 120 else 10.0
        end.ask(line)
        end.answer(line, now)
    assert end.seconds_left(now) == pytest.approx(820 * 10.0)


def test_the_end_is_told_within_a_tenth_from_early_on() -> None:
    """500 lines, the longest first, in 32 slots whose steps are the dearer the more rows there are. Where only whole
    answers counted, the end was told ten times too late when the first ones came."""
    draw, slots, now = random.Random(0), 32, 0.0
    left = sorted((draw.lognormvariate(3.0, 0.8) for _ in range(500)), reverse=True)
    works = {str(place): tokens for place, tokens in enumerate(left)}
    done: dict[str, float] = {}
    end = expected_end(works, lambda line: done.get(line, 0.0) / works[line], 0.0)
    waiting, running, told = list(works), set[str](), list[tuple[float, float | None]]()
    while waiting or running:
        while waiting and len(running) < slots:
            line = waiting.pop(0)
            running.add(line)
            end.ask(line)
            done[line] = 0.0
        now += 0.04 + 0.001 * len(running)
        for line in running:
            done[line] += 1.0
        for line in [one for one in running if done[one] >= works[one]]:
            running.remove(line)
            end.answer(line, now)
        told.append((now, end.seconds_left(now)))
    for at, seconds in told[len(told) // 50 :]:
        assert seconds is not None and abs(at + seconds - now) <= 0.1 * now
