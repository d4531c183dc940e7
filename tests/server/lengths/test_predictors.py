"""The length predictor put together: flags, a light process, a journal, learning, and how all of it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.messages import FinishReason
from engine.sampling.params import SamplingParams
from models.catalog.catalog import DEFAULT_EMBEDDER, Catalog, CatalogError, default_cache
from models.errors import UserError
from scheduler.journal.file import RequestEntry, read
from scheduler.length.features import FEATURES, LengthQuery, TokenFeatures
from scheduler.length.forest import Growth, Manifest, save
from scheduler.length.learning import Learning
from scheduler.length.prediction import LengthDistribution, Prediction, Source
from scheduler.request import Request, Times
from scheduler.strategy import Length
from server.cache_paths import forest_path
from server.config import ServeConfig
from server.lengths import predictors
from server.lengths.lengths import Lengths, PredictorContext
from server.lengths.predictors import KINDS, fetch_predictor, open_lengths, open_predictor
from server.lengths.process import Make
from tests.scheduler.length.examples import linear
from tests.server.lengths import light_predictor
from tests.server.lengths.processes import list_predictors

pytestmark = pytest.mark.usefixtures("cache")

Heard = Callable[[float], None]
QUERY = LengthQuery("a b", "c d", 40, 100)
PARAMS = SamplingParams(max_tokens=100)


@pytest.fixture
def config(embedder: Path) -> ServeConfig:
    """The default time limit is a real one, and test machines are busy."""
    told = ServeConfig(model="org/tiny", strategy="magnus", embedder=str(embedder), embedder_max_tokens=32)
    return replace(told, prediction_timeout=600, learning_interval=600)


def unheard(seconds: float) -> None:
    """Of times that nobody asks for."""


@asynccontextmanager
async def lengths_of(
    config: ServeConfig, make: Make | None = light_predictor.predict, *, held: Heard = unheard, late: Heard = unheard
) -> AsyncIterator[Lengths]:
    # Nothing is nice: other tests may keep all cores busy.
    async with open_predictor(config, make, niceness=0) as process, AsyncExitStack() as stack:
        yield await open_lengths(stack, config, process, PredictorContext(held, late))


def nobody_hears(request: Request, length: float | None, distribution: LengthDistribution | None) -> None:
    raise AssertionError("the prediction was in time")


async def serve(lengths: Lengths, generated: int = 5, query: LengthQuery = QUERY) -> Prediction:
    """One request from its arrival to its end."""
    prediction = await lengths.predict(query, PARAMS)
    assert prediction is not None
    request = Request(0, (1, 2), PARAMS, Times(0.0, end=1.0), generated=generated)
    lengths.note(request, query, prediction, revise=nobody_hears)
    lengths.on_end(request, FinishReason.STOP, 1.0)
    return prediction


def recorded(cache: Path) -> list[RequestEntry]:
    return list(read(cache / "journal" / "journal.sqlite3"))


def keep_forest(cache: Path, about_embedder: str) -> None:
    save(forest_path(cache, "tiny"), linear(1000), Manifest(about_embedder, 32, Growth(trees=5)))


async def test_without_a_forest_earlier_answers_are_the_guess(config: ServeConfig, cache: Path) -> None:
    async with lengths_of(config) as lengths:
        served = [await serve(lengths, 5), await serve(lengths, 7)]
        assert [(one.length, one.source) for one in served] == [(100, Source.MAX_TOKENS), (5, Source.HISTORY)]
    entries = [(one.model, one.source, one.generated, len(one.features)) for one in recorded(cache)]
    assert entries == [("tiny", "max_tokens", 5, FEATURES), ("tiny", "history", 7, FEATURES)]
    assert list_predictors() == []


@pytest.mark.parametrize(("cache_size", "cached"), [(0, []), (8, ["1"])])
async def test_serving_begins_when_warm(config: ServeConfig, cache: Path, cache_size: int, cached: list[str]) -> None:
    cache.mkdir()
    async with lengths_of(replace(config, length_cache_size=cache_size), light_predictor.note):
        # Instructions and user inputs: of a query alone, of a batch; and a text as the length cache has it embedded.
        assert (cache / "noted").read_text().split() == ["2", "16", *cached]


async def test_a_late_prediction_reaches_request_and_journal(config: ServeConfig, cache: Path, embedder: Path) -> None:
    keep_forest(cache, str(embedder))
    delays: list[float] = []
    revised = asyncio.get_running_loop().create_future()

    def revise(request: Request, length: float | None, distribution: LengthDistribution | None) -> None:
        revised.set_result((request.row_id, length, distribution))

    async with lengths_of(replace(config, prediction_timeout=0), late=delays.append) as lengths:
        guess = await lengths.predict(QUERY, PARAMS)
        assert guess is not None and guess.source is Source.MAX_TOKENS
        request = Request(3, (1, 2), PARAMS, Times(0.0, end=1.0), generated=5)
        lengths.note(request, QUERY, guess, revise)
        row_id, length, distribution = await revised
        assert (row_id, distribution is not None, len(delays)) == (3, True, 1)
        lengths.on_end(request, FinishReason.STOP, 1.0)
    (entry,) = recorded(cache)
    assert (entry.predicted, entry.source, len(entry.features)) == (length, "forest", FEATURES)


async def test_a_forest_predicts_and_says_how_likely_it_is(config: ServeConfig, cache: Path, embedder: Path) -> None:
    keep_forest(cache, str(embedder))
    waits: list[float] = []
    async with lengths_of(config, held=waits.append) as lengths:
        prediction = await serve(lengths)
        assert prediction.source is Source.FOREST and prediction.distribution is not None
        assert lengths.front is not None and lengths.front.sources == {Source.FOREST: 1}
    assert len(waits) == 1


async def test_a_forest_that_is_refused_is_told(config: ServeConfig, caplog: pytest.LogCaptureFixture) -> None:
    keep_forest(default_cache(), "another")
    async with lengths_of(config) as lengths:
        assert (await serve(lengths)).source is Source.MAX_TOKENS
    assert caplog.text.count("train it again with `lengthwise train`; until then lengths are predicted without it") == 1


@pytest.mark.parametrize("journalled", [True, False])
async def test_what_was_served_is_learned_from(config: ServeConfig, cache: Path, journalled: bool) -> None:
    async with lengths_of(replace(config, no_journal=not journalled)) as lengths:
        await serve(lengths)
        assert isinstance(lengths.learning, Learning)
        await lengths.learning.learn()
        lesson = lengths.lesson
        assert lesson is not None and lesson.rows == 1
        assert forest_path(cache, "tiny").exists()
        while (await serve(lengths)).source is not Source.FOREST:
            pass  # the new forest is read in a thread
    assert (cache / "journal").exists() is journalled


TABLE = np.random.default_rng(0).normal(size=(50, 32)).astype(np.float32)
OWN = PredictorContext(unheard, unheard, token_features=TokenFeatures.of([TABLE]))


@asynccontextmanager
async def own_lengths(config: ServeConfig, context: PredictorContext = OWN) -> AsyncIterator[Lengths]:
    """Lengths as the default strategy predicts them; forests grow at once, and here."""
    own = replace(config, strategy="lengthwise")
    async with open_predictor(own) as process, AsyncExitStack() as stack:
        lengths = await open_lengths(stack, own, process, context)
        assert process is None and list_predictors() == []
        yield lengths


def asking(tokens: int) -> LengthQuery:
    return replace(QUERY, tokens=tuple(range(tokens)))


async def test_the_default_learns_in_this_process_and_knows_after_a_restart(config: ServeConfig, cache: Path) -> None:
    async with own_lengths(config) as lengths:
        assert (await serve(lengths, query=asking(3))).source is Source.MAX_TOKENS
        for place in range(100):
            tokens = 1 + place % 20
            last = await serve(lengths, 2 * tokens, asking(tokens))
        assert last.source is Source.OWN
        assert lengths.lesson is not None and lengths.front is not None
        assert lengths.front.failures == 0
    assert {one.source for one in recorded(cache)} == {"max_tokens", "own-embeddings"}
    async with own_lengths(config) as lengths:
        short, long = [await serve(lengths, query=asking(tokens)) for tokens in (3, 19)]
        assert short.source is Source.OWN and short.length < 20 < 30 < long.length
        assert long.distribution is not None and long.distribution.quantile(0.05) <= 38


async def test_answers_of_a_model_with_other_embeddings_are_not_learned_from(config: ServeConfig) -> None:
    async with own_lengths(config) as lengths:
        for tokens in range(1, 11):
            for _ in range(10):
                await serve(lengths, 2 * tokens, asking(tokens))
    other = replace(OWN, token_features=TokenFeatures.of([TABLE + 1]))
    async with own_lengths(config, other) as lengths:
        assert (await serve(lengths, query=asking(3))).source is Source.MAX_TOKENS


async def test_a_failing_default_is_told_once(config: ServeConfig, caplog: pytest.LogCaptureFixture) -> None:
    async with own_lengths(config) as lengths:
        beyond = replace(QUERY, tokens=(10**6,))  # no embedding has this number
        assert None not in [await lengths.predict(beyond, PARAMS) for _ in range(3)]
        assert lengths.front is not None and lengths.front.failures == 3
    assert caplog.text.count("the length predictor failed") == 1


async def test_when_the_process_is_killed_requests_go_on_and_another_takes_over(config: ServeConfig) -> None:
    async with lengths_of(config) as lengths:
        assert (await serve(lengths)).features
        (child,) = list_predictors()
        child.kill()
        child.join()
        broken = await serve(lengths)
        assert (broken.source, broken.features) == (Source.HISTORY, ())
        assert lengths.front is not None and lengths.front.failures == 1
        assert (await serve(lengths)).features
    assert list_predictors() == []


async def test_a_process_that_cannot_start_stops_nobody(config: ServeConfig, caplog: pytest.LogCaptureFixture) -> None:
    async with lengths_of(config, light_predictor.fail) as lengths:
        assert (await serve(lengths)).source is Source.MAX_TOKENS
        assert lengths.learning is None
    assert "no lengths can be predicted, requests go on with guesses" in caplog.text and "is empty" in caplog.text


@pytest.mark.parametrize(("usual", "flag", "kept"), [(0, None, 0), (0, 8, 1), (8, None, 1), (8, 0, 0)])
async def test_a_cache_that_a_predictor_or_a_flag_wants_knows_near_duplicates(
    config: ServeConfig, monkeypatch: pytest.MonkeyPatch, usual: int, flag: int | None, kept: int
) -> None:
    assert KINDS[Length.FOREST].cache_size == 0
    monkeypatch.setattr(predictors, "KINDS", {Length.FOREST: replace(KINDS[Length.FOREST], cache_size=usual)})
    async with lengths_of(replace(config, length_cache_size=flag)) as lengths:
        await serve(lengths, 5)
        again = await serve(lengths, 6)
        assert (again.length, again.source) == (5, Source.CACHE if kept else Source.HISTORY)
        assert (0 if lengths.cached is None else lengths.cached.cache.hits) == kept


async def test_where_nobody_predicts_requests_are_recorded_all_the_same(config: ServeConfig, cache: Path) -> None:
    async with lengths_of(replace(config, length_predictor="none")) as lengths:
        assert await lengths.predict(QUERY, PARAMS) is None
        request = Request(0, (1, 2), PARAMS, Times(0.0, end=1.0), generated=5)
        lengths.note(request, QUERY, None, nobody_hears)
        lengths.on_end(request, FinishReason.STOP, 1.0)
        assert list_predictors() == []
    assert [(one.predicted, one.generated) for one in recorded(cache)] == [(None, 5)]


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
    for name in ("none", "own-embeddings"):
        fetch_predictor(replace(config, embedder="nonsense", length_predictor=name))
    with pytest.raises(UserError, match="--length-cache-size is for --length-predictor forest and proxy"):
        fetch_predictor(replace(config, length_predictor="own-embeddings", length_cache_size=8))


async def test_the_default_embedder_works_if_it_is_there(config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_CACHE")
    if not any(one.cached for one in Catalog().known() if one.name == DEFAULT_EMBEDDER):
        pytest.skip(f"{DEFAULT_EMBEDDER} is not in the cache: `lengthwise models pull {DEFAULT_EMBEDDER}`")
    real = replace(config, embedder=DEFAULT_EMBEDDER, no_journal=True)
    async with lengths_of(real, None) as lengths:
        assert len((await serve(lengths)).features) == FEATURES
