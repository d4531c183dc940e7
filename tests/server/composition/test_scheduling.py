"""Flags of `lengthwise serve` that reach parts of a strategy, and prices of steps that a server keeps in its cache."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from engine.measure.timing import Timing, Timings
from engine.messages import BatchShape, ExecutorInfo, RowUpdate, StepReport, StepStats
from models.errors import UserError
from scheduler.batching.batcher import Batcher
from scheduler.learner import inline
from scheduler.request import State
from scheduler.serving_time.bilinear import Bilinear, FitErrors
from scheduler.serving_time.machine import StepLearning
from scheduler.serving_time.profile_file import VERSION, Conditions, Profile, load_profile, write_profile
from scheduler.waiting.fair import Fair
from server.composition import scheduling
from server.composition.scheduling import learn_steps, parts_for
from server.config import ServeConfig
from tests.scheduler.fakes import request, worker

pytestmark = pytest.mark.usefixtures("cache")

SECOND_A_TOKEN = Bilinear(0, 0, 0, 0, 0, 0, 0, 1.0)
EXECUTOR = ExecutorInfo(0, "cpu", capacity_tokens=1000, max_rows=4, context_length=500)


def batcher(strategy: str, **flags: Any) -> Batcher:
    config = ServeConfig(strategy=strategy, **flags)
    return parts_for(config, [EXECUTOR], SECOND_A_TOKEN, inline).batcher


TWO = {"api_key": ("one", "two")}
SHARED = [
    ("lengthwise", {}, False),
    ("lengthwise", {"api_key": ("one",)}, False),
    ("lengthwise", TWO, True),
    ("lengthwise", TWO | {"fair": False}, False),
    ("lengthwise", {"fair": True}, True),
    ("magnus", TWO, False),
    ("fair", {}, True),
]


@pytest.mark.parametrize(("strategy", "flags", "fair"), SHARED)
def test_service_is_shared_out_with_two_keys_or_as_told(strategy: str, flags: dict[str, Any], fair: bool) -> None:
    assert isinstance(batcher(strategy, **flags).waiting.order, Fair) is fair


@pytest.mark.parametrize(("timeout", "taken"), [(0.0, [True, False]), (2.0, [False, True])])
def test_a_batch_waits_as_long_as_it_is_told_to_fill_up(timeout: float, taken: list[bool]) -> None:
    waiting = batcher("fcfs-dynamic", batch_wait_timeout=timeout, max_batch_size=2)
    waiting.add(request(), 0.0)
    assert [waiting.take(worker(), now) is not None for now in (1.0, 2.0)] == taken


FOUR = ((0.0, 90.0), (1.0, 90.0), (2.0, 1.0), (3.0, 1.0))  # a long request came first, then one like it, then two short


ORDERED = [
    ("lengthwise", {"out_of_turn": 0.0, "prefill_ahead": 0}, FOUR, 0.0, 1, [0, 1]),
    ("lengthwise", {"out_of_turn": 0.5, "prefill_ahead": 0}, FOUR, 0.0, 1, [0, 2]),
    # with a large gamma it is first come, first served
    ("boost", {"boost_gamma": 1e-4}, ((0.0, 8.0), (1.0, 1.0)), 1.0, 1, [1, 0]),
    ("boost", {"boost_gamma": 100.0}, ((0.0, 8.0), (1.0, 1.0)), 1.0, 1, [0, 1]),
    # 8 tokens are 8 seconds of this machine; the short one comes when they have passed
    ("ssjf-none", {"aging_factor": 0.5}, ((0.0, 8.0), (8.0, 1.0)), 8.0, 4, [0]),
    ("ssjf-none", {"aging_factor": 2.0}, ((0.0, 8.0), (8.0, 1.0)), 8.0, 4, [1]),
]


@pytest.mark.parametrize(("strategy", "flags", "came", "at", "rows", "served"), ORDERED)
def test_flags_of_an_order_decide_what_is_served(
    strategy: str, flags: dict[str, Any], came: Sequence[tuple[float, float]], at: float, rows: int, served: list[int]
) -> None:
    """`came`: arrival and predicted length of each request."""
    waiting, taken = batcher(strategy, **flags), list[int]()
    for place, (arrival, length) in enumerate(came):
        one = request(place, arrival=arrival)
        one.predicted_length = length
        waiting.add(one, min(arrival, at))
    while len(taken) < len(served):
        plan = waiting.take(worker(rows=rows), at)
        assert plan is not None
        taken += [one.row_id for one in plan.requests]
        plan.requests[0].move(State.ASSIGNED)
    assert taken == served


CONDITIONS = Conditions("tiny", "float32", "none", "a processor", 2, 512)
MODEL = Bilinear(1, 2, 3, 4, 5, 6, 7, 8)
TIMINGS = Timings((Timing(1, 10, 0.5),), (Timing(2, 20, 0.25),))
PROFILE = Profile(CONDITIONS, "2026-01-01T00:00:00+00:00", "0", MODEL, FitErrors(0, 0, None), TIMINGS)


def learn(timings: Timings = Timings()) -> StepLearning:  # noqa: B008
    return learn_steps(CONDITIONS, inline, timings)


def kept(cache: Path) -> Profile | None:
    return load_profile(cache, CONDITIONS, learned=True)


def serve(learning: StepLearning, seconds: int) -> None:
    """A prefill and ten decode steps a second."""
    for second in range(seconds):
        prefill = StepStats(prompt=50 + second % 7, generated=1)
        update = (RowUpdate(second, (1,)),)
        report = StepReport(0, 11 * second + 1, update, BatchShape(), 0.1, begun=(second,), tally=prefill)
        learning.receive(report, second)
        for step in range(10):
            decode = StepStats(generated=2, reads=2 * (60 + step))
            learning.receive(StepReport(0, 11 * second + 2 + step, (), BatchShape(), 0.05, tally=decode), second)


def test_a_server_begins_with_what_an_earlier_one_has_learned_up_to_its_end(cache: Path) -> None:
    """Up to a minute of it was lost."""
    learn().close()
    assert kept(cache) is None, "it has served nothing"
    learning = learn()
    serve(learning, 45)
    early = kept(cache)
    learning.close()
    late = kept(cache)
    assert early is not None and late is not None and late.model == learning.machine.model
    assert len(late.timings.decode) >= len(early.timings.decode) and late != early
    assert learn().machine.model == late.model


def test_steps_measured_while_loading_tell_a_new_server_what_many_rows_take(cache: Path) -> None:
    """What one request takes was promised to each of twenty."""
    learning = learn(Timings((), tuple(Timing(rows, 60, 0.04 + 0.005 * rows) for rows in (8, 16, 32))))
    serve(learning, 5)  # two rows, 0.05 s
    assert learning.machine.model is not None
    assert learning.machine.model.iteration(20.0, 60.0) == pytest.approx(0.14, rel=0.05)


def test_prompts_and_steps_measured_while_loading_are_a_new_servers_first_prices(cache: Path) -> None:
    """None were there until an answer had ended, so all that asked for a promise were refused."""
    slow = Bilinear(p1=0.002, p4=0.02, d2=0.01, d4=0.08)  # twice what is served
    prompts = tuple(Timing(1, length, slow.prefill(1, length)) for length in (16, 128))
    learning = learn(Timings(prompts, tuple(Timing(rows, 60, slow.iteration(rows, 60)) for rows in (8, 16, 32))))
    first = learning.machine.model
    assert first is not None and first.iteration(20.0, 60.0) == pytest.approx(0.28, rel=0.05)
    assert first.prefill(1, 64) == pytest.approx(0.148, rel=0.1)
    learning.close()
    assert kept(cache) is None
    serve(learning, 5)
    assert learning.machine.model is not None and learning.machine.model != first, "corrected within seconds"


def test_what_was_measured_stays_and_counts_where_it_is_newer(cache: Path) -> None:
    """Learned prices took the place of those that `lengthwise profile` had measured."""
    write_profile(cache, PROFILE)
    learning = learn()
    serve(learning, 30)
    learning.close()
    assert load_profile(cache, CONDITIONS) == PROFILE
    assert learn().machine.model == learning.machine.model != MODEL
    write_profile(cache, replace(PROFILE, measured_at="2999-01-01T00:00:00+00:00"))
    assert learn().machine.model == MODEL


def test_it_is_written_once_a_minute_at_most_and_an_unwritten_cache_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = Mock(side_effect=[None, UserError("cannot write: No space left on device"), None])
    monkeypatch.setattr(scheduling, "write_profile", write)
    learning = learn()
    serve(learning, 150)
    assert write.call_count == 3 and learning.learner.changes > 10
    assert "are not kept: cannot write: No space left" in caplog.text


UNUSABLE = [
    (lambda text: text[: len(text) // 2], "is not a profile"),
    (lambda text: text.replace('"version": 2', '"version": 1'), f"version 1 and this program reads version {VERSION}"),
    (lambda text: text.replace('"p1": 1,', '"p1": -1,'), "must be finite and not negative"),
    (lambda text: text.replace('"p1": 1,', '"p1": NaN,'), "is not a profile"),
    (lambda text: text.replace('"seconds": 0.5', '"seconds": -0.5'), "a timing is of one row or more"),
    (lambda text: json.dumps({**json.loads(text), "conditions": None}), "is not a profile"),
    (lambda text: text.replace("a processor", "another processor"), "is a profile of"),
    (lambda text: text.replace("float32", "bfloat16"), "is a profile of"),
    (lambda text: text.replace("tiny", "other"), "is a profile of"),
]


@pytest.mark.parametrize(("spoil", "reason"), UNUSABLE)
def test_a_file_that_cannot_be_used_is_a_warning_and_prices_are_learned_anew(
    cache: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[str], str], reason: str
) -> None:
    path = write_profile(cache, PROFILE)
    spoilt = spoil(path.read_text())
    assert spoilt != path.read_text()
    path.write_text(spoilt)
    assert learn().machine.model is None
    assert "prices are learned anew" in caplog.text and reason in caplog.text
