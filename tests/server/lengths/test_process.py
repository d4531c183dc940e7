"""The predictor's process: what its worker answers, and a real process that is asked, taught, killed and closed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.embedder import Embedder
from scheduler.length.features import LengthQuery
from scheduler.length.forest import Examples, Growth, Manifest, grow, read, save
from scheduler.length.learning import ServedRow
from scheduler.length.online import fit
from server.lengths.process import NicedProcess, PredictorProcess, Setup, embed
from server.predictor_cores import PREDICTOR_NICENESS
from server.worker_process import ProcessFailed
from tests.models import tiny_embedder
from tests.scheduler.length.examples import answers, linear, wordless
from tests.server.lengths import light_predictor
from tests.server.lengths.light_predictor import FakeEmbedder
from tests.server.lengths.processes import list_predictors, predictor_pid

ROOT = Path(__file__).parents[3]
QUERIES = (LengthQuery("a b", "c d", 40, 100), LengthQuery("a b", "e", 5, 100))


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """Nothing is nice, since other tests may keep all cores busy."""
    return Setup(tmp_path, tmp_path / "tiny.forest", Manifest("tiny", 32, Growth(trees=5)), niceness=0)


def keep_forest(setup: Setup, examples: Examples, *, embedder: str = "tiny") -> None:
    save(setup.forest, examples, replace(setup.about, embedder=embedder))


def test_with_a_forest_the_worker_answers_with_distributions(setup: Setup) -> None:
    keep_forest(setup, linear(1000))
    estimates = light_predictor.predict(setup).estimate(QUERIES)
    means = [one.distribution.mean for one in estimates if one.distribution is not None]
    assert means == pytest.approx(grow(linear(1000), setup.about.growth).predict(embed(FakeEmbedder(), QUERIES)))
    assert [one.features[-1] for one in estimates] == [40, 5]


async def test_a_forest_for_another_embedder_is_not_used(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    keep_forest(setup, linear(), embedder="labse")
    assert [estimate.distribution for estimate in light_predictor.predict(setup).estimate(QUERIES)] == [None, None]
    with closing(PredictorProcess(setup, light_predictor.predict)) as process:
        assert await process.training() is None
    assert "made for the embedder labse with 32 tokens, not for tiny" in caplog.text


def test_a_new_forest_takes_the_old_ones_place(setup: Setup) -> None:
    keep_forest(setup, linear())
    one = light_predictor.predict(setup)
    ten = Examples(linear().features, np.full(200, 10, dtype=np.float32))
    one.take(grow(ten, setup.about.growth))
    distributions = [estimate.distribution for estimate in one.estimate(QUERIES)]
    assert [one.mean for one in distributions if one is not None] == [10, 10]


async def test_what_goes_wrong_in_a_batch_is_its_answer(setup: Setup) -> None:
    with closing(PredictorProcess(setup, light_predictor.stumble)) as process:
        for _ in range(2):  # the process goes on
            with pytest.raises(ProcessFailed, match="^ZeroDivisionError: division by zero$"):
                await process.estimate(QUERIES)


async def test_a_real_embedder_works_and_gives_way(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_embedder.build(tmp_path_factory.mktemp("embedder"))
    with closing(PredictorProcess(replace(setup, folder=folder), timeout=200)) as process:
        await process.start()
        own, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, predictor_pid()))
        assert its == min(19, own + PREDICTOR_NICENESS)
        features = [one.features for one in await process.estimate(QUERIES)]
    assert np.array(features) == pytest.approx(embed(Embedder.load(folder, max_tokens=32), QUERIES), abs=1e-5)


def test_work_that_is_nice_brings_its_result_or_the_reason_why_there_is_none() -> None:
    with closing(NicedProcess(niceness=7)) as niced:
        examples = Examples(np.zeros((2, 1), dtype=np.float32), np.array([3, 5], dtype=np.float32))
        assert niced.submit(niced.run, light_predictor.divide, examples, 2).result() == (min(19, os.nice(0) + 7), 4.0)
        with pytest.raises(ProcessFailed, match="no forest could be grown: ZeroDivisionError"):
            niced.run(light_predictor.divide, examples, 0)
    assert list_predictors() == []


def test_work_is_given_up_at_the_end_also_while_its_process_is_being_started() -> None:
    """A forest that was growing when the server ended was told as one that could not be grown."""
    niced = NicedProcess(niceness=0)
    niced.close()
    with pytest.raises(CancelledError):
        niced.run(time.sleep, 600)


def test_work_is_given_up_when_a_server_and_all_its_processes_are_told_to_end() -> None:
    """The log of a normal end had `no forest could be grown`."""
    with closing(NicedProcess(niceness=0)) as niced:
        with pytest.raises(CancelledError):
            niced.run(signal.raise_signal, signal.SIGTERM)
        with pytest.raises(ProcessFailed, match="is gone"):
            niced.run(signal.raise_signal, signal.SIGKILL)


def test_the_default_forest_comes_back_from_its_process_as_it_is_grown_here() -> None:
    with closing(NicedProcess(niceness=0)) as niced:
        apart = niced.run(fit, answers(linear(80)))
    unseen = wordless(linear(3, seed=1))
    here = [one.mean for one in fit(answers(linear(80))).distributions(unseen)]
    assert [one.mean for one in apart.distributions(unseen)] == pytest.approx(here)


async def test_a_forest_worse_than_the_present_is_not_used(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    keep_forest(setup, linear(1000))
    kept = setup.forest.read_bytes()
    caplog.set_level("INFO", "server.lengths.process")
    features, lengths = linear().features, linear().lengths
    rows = zip(features.tolist(), lengths.tolist(), strict=True)
    judges = [ServedRow(tuple(one), 0.0, int(length)) for one, length in rows]
    with closing(PredictorProcess(setup, light_predictor.predict)) as process:
        await process.train(Examples(features, np.full(len(features), 8155, dtype=np.float32)), judges)
        assert setup.forest.read_bytes() == kept
        assert f"worse on {len(judges)} answers held out" in caplog.text


@pytest.mark.timeout(400)
async def test_the_process_learns_comes_back_after_a_kill_and_ends(setup: Setup) -> None:
    with closing(PredictorProcess(setup, light_predictor.predict)) as process:
        await process.start()
        assert (await process.estimate(QUERIES))[0].distribution is None
        await process.train(linear())
        assert read(setup.forest)[0].lengths.tolist() == linear().lengths.tolist()
        while (await process.estimate(QUERIES))[0].distribution is None:
            await asyncio.sleep(0)

        os.kill(predictor_pid(), signal.SIGKILL)
        with pytest.raises(ProcessFailed, match="process is gone"):
            while True:  # it may still have answered one
                await process.estimate(QUERIES)
        assert (await process.estimate(QUERIES))[0].distribution is not None
    assert list_predictors() == []


@contextmanager
def stopped_predictor() -> Iterator[None]:
    """A process that predicts and stands still, which is gone afterwards."""
    os.kill(number := predictor_pid(), signal.SIGSTOP)
    yield
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


async def test_a_process_that_stands_still_is_replaced(setup: Setup) -> None:
    """It was waited for without an end, and nothing was predicted any more."""
    with closing(PredictorProcess(setup, light_predictor.predict, timeout=1)) as process:
        await process.start()
        with stopped_predictor():
            with pytest.raises(ProcessFailed, match="stands still"):
                await process.estimate(QUERIES)
            assert len(await process.estimate(QUERIES)) == 2


async def test_the_end_waits_for_no_process_standing_still(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told to end, which a stopped process does not hear, and then waited for without an end."""
    monkeypatch.setattr("server.worker_process.END_TIMEOUT", 0.1)
    process = PredictorProcess(setup, light_predictor.predict, timeout=600)
    await process.start()
    with stopped_predictor():
        waiting = asyncio.create_task(process.estimate(QUERIES))
        await asyncio.sleep(0)  # it begins
        await asyncio.to_thread(process.close)
        with pytest.raises(ProcessFailed):
            await waiting


async def test_examples_that_nothing_can_be_learned_from_are_told(setup: Setup) -> None:
    said = "no forest could be grown: ValueError: there are no examples"
    with closing(PredictorProcess(setup, light_predictor.predict)) as process, pytest.raises(ProcessFailed, match=said):
        await process.train(linear(0))


def test_the_trainers_process_starts_without_torch() -> None:
    program = "import server.lengths.process, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
