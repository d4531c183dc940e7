"""The length predictor put together: flags, a light process, a journal, learning, and how all of it ends."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.messages import FinishReason, SamplingParams
from models.catalog.catalog import DEFAULT_EMBEDDER, Catalog, CatalogError
from models.errors import UserError
from scheduler.clock import MonotonicClock
from scheduler.journal.file import RequestEntry, read
from scheduler.length.distribution import LengthDistribution
from scheduler.length.features import FEATURES, LengthQuery
from scheduler.length.forest import Growth, grow
from scheduler.length.forest_file import manifest, save
from scheduler.length.prediction import Prediction, Source
from scheduler.request import Request, Times
from scheduler.strategy import Length
from server.cli.config import ServeConfig
from server.lengths import predictors
from server.lengths.lengths import Lengths
from server.lengths.predictors import PredictorContext, fetch_predictor, open_lengths, open_predictor
from server.lengths.process import Work
from server.process.cache_paths import forest_path
from tests.scheduler.length.examples import linear
from tests.server.lengths import light_predictor

pytestmark = pytest.mark.usefixtures("cache")

QUERY = LengthQuery("a b", "c d", 40, 100)
PARAMS = SamplingParams(max_tokens=100)


@pytest.fixture
def config(embedder: Path) -> ServeConfig:
    """The default time limit is a real one, and test machines are busy."""
    return ServeConfig(
        model="org/tiny",
        strategy="magnus",
        embedder=str(embedder),
        embedder_max_tokens=32,
        prediction_timeout=600,
        learning_interval=600,
    )


@asynccontextmanager
async def lengths_of(
    config: ServeConfig,
    work: Work | None = light_predictor.predict,
    held: Callable[[float], None] = lambda seconds: None,
    late: Callable[[float], None] = lambda seconds: None,
) -> AsyncIterator[Lengths]:
    async with (
        open_predictor(config, work, niceness=0) as predictor,  # other tests may keep all cores busy
        open_lengths(config, predictor, MonotonicClock(), PredictorContext(held, late)) as lengths,
    ):
        yield lengths


def nobody_hears(request: Request, length: float | None, distribution: LengthDistribution | None) -> None:
    raise AssertionError("the prediction was in time")


async def serve(lengths: Lengths, generated: int = 5, query: LengthQuery = QUERY) -> Prediction:
    """One request from its arrival to its end."""
    prediction = await lengths.predict(query, PARAMS)
    assert prediction is not None
    request = Request(0, (1, 2), PARAMS, Times(0.0, end=1.0), generated=generated)
    lengths.note(request, query, prediction, revise=nobody_hears)
    lengths.ended(request, FinishReason.STOP, 1.0)
    return prediction


def journalled(cache: Path) -> list[RequestEntry]:
    return list(read(cache / "journal" / "journal.sqlite3", RequestEntry))


def keep_forest(cache: Path, about_embedder: str) -> None:
    forest = grow(linear(1000), Growth(trees=5))
    save(forest_path(cache, "tiny"), forest, manifest(about_embedder, 32, 1000))


async def test_without_a_forest_earlier_answers_are_the_guess_and_features_go_into_the_journal(
    config: ServeConfig, cache: Path
) -> None:
    async with lengths_of(config) as lengths:
        first, second = await serve(lengths, 5), await serve(lengths, 7)
        assert (first.length, first.source) == (100, Source.MAX_TOKENS)
        assert (second.length, second.source) == (5, Source.HISTORY)
    entries = journalled(cache)
    assert [(one.model, one.source, one.generated) for one in entries] == [
        ("tiny", "max_tokens", 5),
        ("tiny", "history", 7),
    ]
    assert [len(one.features) for one in entries] == [FEATURES, FEATURES]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("cache_size", "cached"), [(0, []), (8, ["1"])])
async def test_serving_begins_when_the_predictor_is_warm(
    config: ServeConfig, cache: Path, cache_size: int, cached: list[str]
) -> None:
    cache.mkdir()
    async with lengths_of(replace(config, length_cache_size=cache_size), light_predictor.note):
        # Instructions and user inputs: of a query alone, of a batch; and a text as the length cache has it embedded.
        assert (cache / "noted").read_text().split() == ["2", "16", *cached]


async def test_a_prediction_that_is_late_reaches_its_request_and_the_journal(
    config: ServeConfig, cache: Path, embedder: Path
) -> None:
    keep_forest(cache, str(embedder))
    delays: list[float] = []
    revised = asyncio.get_running_loop().create_future()

    def revise(request: Request, length: float | None, distribution: LengthDistribution | None) -> None:
        revised.set_result((request.row_id, length, distribution))

    async with lengths_of(config, late=delays.append) as lengths:
        guess = await lengths.predict(QUERY, PARAMS, queues=False)
        assert guess is not None and guess.source is Source.MAX_TOKENS
        request = Request(3, (1, 2), PARAMS, Times(0.0, end=1.0), generated=5)
        lengths.note(request, QUERY, guess, revise)
        async with asyncio.timeout(60):
            row_id, length, distribution = await revised
        assert (row_id, distribution is not None, len(delays)) == (3, True, 1)
        lengths.ended(request, FinishReason.STOP, 1.0)
    (entry,) = journalled(cache)
    assert (entry.predicted, entry.source, len(entry.features)) == (length, "forest", FEATURES)


async def test_a_forest_predicts_and_tells_how_likely_lengths_are(
    config: ServeConfig, cache: Path, embedder: Path
) -> None:
    keep_forest(cache, str(embedder))
    waits: list[float] = []
    async with lengths_of(config, held=waits.append) as lengths:
        prediction = await serve(lengths)
        assert prediction.source is Source.FOREST and prediction.distribution is not None
        assert lengths.learned.front is not None and lengths.learned.front.sources == {Source.FOREST: 1}
    assert len(waits) == 1


async def test_a_forest_that_is_refused_is_told_with_the_remedy_and_serving_goes_on(
    config: ServeConfig, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_forest(cache, "another")
    async with lengths_of(config) as lengths:
        assert (await serve(lengths)).source is Source.MAX_TOKENS
    assert caplog.text.count("train it again with `lengthwise train`; until then lengths are predicted without it") == 1


async def test_what_was_served_is_learned_from(config: ServeConfig, cache: Path) -> None:
    async with lengths_of(config) as lengths:
        learning, rounds = lengths.learned.learning, 0
        assert learning is not None
        lesson = None
        while lesson is None:  # the journal is written by a thread of its own
            await serve(lengths, 5)
            rounds += 1
            lesson = await learning.learn()
        assert forest_path(cache, "tiny").exists()
        assert list(lengths.learned.lessons) == [lesson] and lesson.rows <= rounds
        while (await serve(lengths)).source is not Source.FOREST:
            pass  # the new forest is read in a thread


async def test_only_what_is_served_from_now_on_is_learned_from(config: ServeConfig) -> None:
    async with lengths_of(config) as lengths:
        await serve(lengths)
    async with lengths_of(config) as lengths:
        assert lengths.learned.learning is not None
        assert await lengths.learned.learning.learn() is None


async def test_when_the_process_is_killed_requests_go_on_and_another_takes_over(config: ServeConfig) -> None:
    async with lengths_of(config) as lengths:
        assert (await serve(lengths)).features
        (child,) = (one for one in multiprocessing.active_children() if one.name == "predict")
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        broken = await serve(lengths)
        assert (broken.source, broken.features) == (Source.HISTORY, ())
        assert lengths.learned.front is not None and lengths.learned.front.failures == 1
        assert (await serve(lengths)).features
    assert multiprocessing.active_children() == []


async def test_a_process_that_cannot_start_is_told_and_serving_goes_on(
    config: ServeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async with lengths_of(config, light_predictor.fail) as lengths:
        assert (await serve(lengths)).source is Source.MAX_TOKENS
        assert lengths.learned.learning is None
    assert "no lengths can be predicted, requests go on with guesses" in caplog.text


async def test_a_cache_knows_near_duplicates(config: ServeConfig) -> None:
    async with lengths_of(replace(config, length_cache_size=8)) as lengths:
        await serve(lengths, 5)
        again = await serve(lengths, 6)
        assert (again.length, again.source) == (5, Source.CACHE)
        counts = lengths.learned.cached
        assert counts is not None and (counts.hits, counts.error) == (1, 1.0)
    async with lengths_of(config) as lengths:
        assert lengths.learned.cached is None


async def test_one_flag_turns_a_cache_off_that_a_predictor_comes_with(
    config: ServeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    forest = replace(predictors.KINDS[Length.FOREST], cache_size=8)
    monkeypatch.setattr(predictors, "KINDS", {Length.FOREST: forest})
    async with lengths_of(config) as lengths:
        assert lengths.learned.cached is not None
    async with lengths_of(replace(config, length_cache_size=0)) as lengths:
        await serve(lengths, 5)
        assert (await serve(lengths, 6)).source is not Source.CACHE
        assert lengths.learned.cached is None


async def test_where_nobody_predicts_requests_are_recorded_all_the_same(config: ServeConfig, cache: Path) -> None:
    async with lengths_of(replace(config, length_predictor="none")) as lengths:
        assert await lengths.predict(QUERY, PARAMS) is None
        request = Request(0, (1, 2), PARAMS, Times(0.0, end=1.0), generated=5)
        lengths.note(request, QUERY, None, nobody_hears)
        lengths.ended(request, FinishReason.STOP, 1.0)
        assert multiprocessing.active_children() == []
    assert [(one.predicted, one.generated) for one in journalled(cache)] == [(None, 5)]


async def test_without_a_journal_nothing_is_written_and_nothing_learned(
    config: ServeConfig, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with lengths_of(replace(config, no_journal=True)) as lengths:
        await serve(lengths)
        assert lengths.learned.learning is None and lengths.learned.lessons == ()
    assert not (cache / "journal").exists()
    assert "does not learn" in caplog.text


async def test_an_oracle_knows_and_needs_replayed_lengths(config: ServeConfig) -> None:
    told = replace(config, length_predictor="oracle", allow_replay=True)
    async with lengths_of(told) as lengths:
        prediction = await lengths.predict(QUERY, replace(PARAMS, replay_tokens=9))
        assert prediction is not None and (prediction.length, prediction.source) == (9, Source.ORACLE)
    with pytest.raises(UserError, match="--allow-replay"):
        fetch_predictor(replace(told, allow_replay=False))


def test_what_is_missing_is_told_before_anything_is_loaded(config: ServeConfig) -> None:
    with pytest.raises(CatalogError, match="lengthwise train --predictor proxy.*--length-predictor none"):
        fetch_predictor(replace(config, length_predictor="proxy"))
    with pytest.raises(CatalogError, match="nonsense.*--length-predictor none"):
        fetch_predictor(replace(config, embedder="nonsense"))
    fetch_predictor(replace(config, embedder="nonsense", length_predictor="none"))


async def test_the_default_embedder_works_where_it_is_cached(
    config: ServeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LENGTHWISE_CACHE")
    if not any(one.cached for one in Catalog().known() if one.name == DEFAULT_EMBEDDER):
        pytest.skip(f"{DEFAULT_EMBEDDER} is not in the cache: `lengthwise models --path {DEFAULT_EMBEDDER}`")
    real = replace(config, embedder=DEFAULT_EMBEDDER, no_journal=True)
    async with lengths_of(real, None) as lengths:
        assert len((await serve(lengths)).features) == FEATURES
