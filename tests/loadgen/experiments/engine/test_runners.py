from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.row import Row
from engine.sampling.draw import draw
from loadgen.experiments.engine.feed import Job
from loadgen.experiments.engine.measure import Interrupted, apart
from loadgen.experiments.engine.runners import Generate, GenerateBatch, Lengthwise, Runner
from loadgen.experiments.engine.setup import load_plain
from models.network.generation_config import SamplingDefaults
from models.network.loader import LoadedModel
from models.text import Text
from tests.loadgen.experiments.engine.parts import subject_of, ticking

JOBS = [Job(tuple(range(5, 5 + length)), 1 + length % 5) for length in (9, 4, 12, 6, 7)]
"""Outputs of 5, 5, 3, 2 and 3 tokens."""


@pytest.fixture(scope="module")
def plain(tiny_model: LoadedModel, tiny_text: Text) -> PreTrainedModel:
    return load_plain(subject_of(tiny_model, tiny_text))


@pytest.fixture
def runners(tiny_model: LoadedModel, tiny_text: Text, plain: PreTrainedModel) -> dict[str, Runner]:
    every = (
        Lengthwise(subject_of(tiny_model, tiny_text), 2, ticking()),
        Generate(plain, 2, ticking()),
        GenerateBatch(plain, 2),
    )
    return {runner.name: runner for runner in every}


@pytest.mark.parametrize("name", ["lengthwise", "generate", "generate_batch"])
def test_only_tokens_that_were_asked_for_count_and_runs_can_be_repeated(runners: dict[str, Runner], name: str) -> None:
    for _ in range(2):
        turn = runners[name].run(JOBS)
        assert turn.lengths == (5, 5, 3, 2, 3)
        assert turn.seconds > 0 and turn.steps and min(turn.steps) >= 0


@pytest.mark.parametrize("name", ["lengthwise", "generate"])
def test_runners_draw_as_the_jobs_ask(runners: dict[str, Runner], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = SamplingDefaults(temperature=0.2, top_p=0.9, repetition_penalty=1.1)
    drawn: list[int] = []
    multinomial = torch.multinomial

    def noted_draw(rows: Sequence[Row], logits: Tensor) -> Tensor:
        assert all((row.sampling.top_p, row.sampling.repetition_penalty) == (0.9, 1.1) for row in rows)
        drawn.append(len(rows))
        return draw(rows, logits)

    def noted_multinomial(shares: Tensor, num_samples: int) -> Tensor:
        drawn.append(len(shares))
        return multinomial(shares, num_samples)

    monkeypatch.setattr("engine.sampling.sampler.draw", noted_draw)
    monkeypatch.setattr(torch, "multinomial", noted_multinomial)
    runners[name].run(JOBS)
    assert not drawn
    turn = runners[name].run([replace(job, sampling=asked) for job in JOBS])
    assert drawn and turn.lengths == (5, 5, 3, 2, 3)


def test_a_static_batch_goes_on_until_its_longest_row_ends(runners: dict[str, Runner]) -> None:
    # Three batches of 5, 3 and 3 steps: the clock is read at each, and once before and after all.
    turn = runners["generate"].run(JOBS)
    assert turn.seconds == 5 + 3 + 3 + 1
    assert turn.steps == (1.0,) * (4 + 2 + 2)


def test_steps_of_this_engine_are_turns_in_which_nothing_is_read(runners: dict[str, Runner]) -> None:
    turn = runners["lengthwise"].run(JOBS[:1])
    assert turn.seconds == 5 and turn.steps == (1.0,) * 4


@pytest.mark.parametrize("name", ["lengthwise", "generate"])
def test_an_interrupt_ends_a_run_at_the_next_step(runners: dict[str, Runner], name: str) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        runners[name]._run(JOBS, stop)  # type: ignore[attr-defined]


def test_work_apart_is_stopped_and_waited_for_when_the_main_thread_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()
    monkeypatch.setattr("models.own_thread.wait", interrupted_once(wait))

    def work(stop: threading.Event) -> None:
        assert stop.wait(60)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        apart(work)
    assert ended.is_set()


def interrupted_once(waiting: Callable[..., object]) -> Callable[..., None]:
    calls = itertools.count()

    def interrupted(futures: list[Future[None]]) -> None:
        if next(calls) == 0:
            raise KeyboardInterrupt
        waiting(futures)

    return interrupted


def test_what_work_apart_raises_is_raised_here() -> None:
    def work(_: threading.Event) -> None:
        raise ValueError("apart")

    with pytest.raises(ValueError, match="apart"):
        apart(work)
