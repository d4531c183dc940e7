"""What a server knows of serving times when it starts: its profile, and what the journal has of its own batches."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from engine.messages import SamplingParams
from models.network.loader import LoadedModel
from scheduler.journal.file import BatchEntry, read
from scheduler.serving_time.bilinear import FitErrors
from scheduler.serving_time.profile_file import Conditions, Profile, digest, write_profile
from scheduler.serving_time.refit import FEWEST
from server.cli.config import ServeConfig, load_config
from server.process import scheduling
from server.process.app import open_service
from server.process.conditions import conditions_of
from server.process.scheduling import refit_data_of
from tests.scheduler.entries import written
from tests.scheduler.serving_time.closed import PROFILE, timings, took

CONDITIONS = Conditions("tiny", "float32", "none", "A Processor", 1, 2048)
MEASURED = time.time() - 1000


def profile_of(conditions: Conditions = CONDITIONS) -> Profile:
    measured_at = datetime.fromtimestamp(MEASURED, UTC).isoformat(timespec="seconds")
    return Profile(conditions, measured_at, "0.1.0", PROFILE, FitErrors(0.0, 0.0, None), timings())


def served(conditions: Conditions = CONDITIONS, *, factor: float = 3.0, ended: float = MEASURED + 100) -> BatchEntry:
    batch = took(PROFILE, 4, 100, factor=factor)
    return BatchEntry(
        finished_at=ended,
        model="tiny",
        strategy="scls",
        executor=0,
        rows=batch.rows,
        input_length=batch.input_length,
        generation_length=batch.iterations + 1,
        predicted_length=None,
        predicted_seconds=1.0,
        seconds=batch.seconds,
        iterations=batch.iterations,
        fresh_rows=batch.fresh_rows,
        fresh_length=batch.fresh_length,
        copied_tokens=batch.copied_tokens,
        conditions=digest(conditions),
    )


def config_of(path: Path, **flags: Any) -> ServeConfig:
    return ServeConfig(model="tiny", journal=path, **{"strategy": "scls", **flags})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


def test_batches_of_the_same_conditions_since_the_profile_count(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others were faster: before it was measured, and with another number of threads."""
    others = [served(factor=0.1, ended=MEASURED - 5), served(replace(CONDITIONS, threads=2), factor=0.1)]
    written(path, *others * FEWEST, *[served()] * FEWEST, *others)
    with caplog.at_level(logging.INFO):
        found = refit_data_of(config_of(path), profile_of())
    assert found is not None and found.model is not None
    assert found.earlier == (took(PROFILE, 4, 100, factor=3.0),) * FEWEST
    assert found.model.serve(2, 50, 20) == pytest.approx(3 * PROFILE.serve(2, 50, 20), rel=1e-3)
    assert f"re-fitted from {FEWEST} batches" in caplog.text


@pytest.mark.parametrize("flags", [{"strategy": "magnus"}, {"strategy": "lengthwise"}])
def test_who_does_not_estimate_by_a_bilinear_model_reads_nothing(path: Path, flags: dict[str, str]) -> None:
    path.write_text("hello" * 1000)
    assert refit_data_of(config_of(path, **flags), profile_of()) is None
    assert refit_data_of(config_of(path), None) is None


def test_without_a_journal_there_is_the_profile(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(path, *[served()] * FEWEST)
    for config in (config_of(path, no_journal=True), config_of(path.with_name("none yet"))):
        found = refit_data_of(config, profile_of())
        assert found is not None and found.model == PROFILE and found.earlier == ()
    assert caplog.records == []


def test_a_journal_that_cannot_be_read_is_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text("hello" * 1000)
    found = refit_data_of(config_of(path), profile_of())
    assert found is not None and found.model is None and found.timings == timings()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "without what was served before" in caplog.text and str(path) in caplog.text


def test_a_folder_that_may_not_be_searched_is_one_too(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*arguments: object, **options: object) -> list[object]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(scheduling, "closed_batches", forbidden)  # whoever runs tests as root may search all
    found = refit_data_of(config_of(path), profile_of())
    assert found is not None and found.model is None
    assert "without what was served before" in caplog.text and "Permission denied" in caplog.text


def test_a_profile_without_a_date_is_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(path, *[served()] * FEWEST)
    assert refit_data_of(config_of(path), replace(profile_of(), measured_at="lately")) is not None
    assert "without what was served before" in caplog.text and "lately" in caplog.text


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_server_begins_with_what_the_journal_has(
    tiny_folder: Path, tiny_model: LoadedModel, cache: Path, path: Path, damaged: bool
) -> None:
    flags = {"model": str(tiny_folder), "journal": path, "strategy": "scls", "dtype": "float32", "device": "cpu"}
    config = load_config({**flags, "max_num_seqs": 2, "slice_length": 8}, {}, None)
    conditions = conditions_of(config, tiny_model)
    write_profile(cache, profile_of(conditions))
    if damaged:
        path.write_text("hello" * 1000)
    else:
        written(path, *[served(conditions)] * FEWEST)
    async with open_service(config) as service, asyncio.timeout(60):
        request = service.dispatcher.submit((5, 6, 7), SamplingParams(max_tokens=12, ignore_eos=True))
        async for _ in request.stream:
            pass
    *_, first, second = read(path, BatchEntry)
    pace = 1 if damaged else 3
    assert first.predicted_seconds == pytest.approx(pace * PROFILE.serve(1, 3, 8), rel=1e-3)
    assert (first.rows, first.iterations, first.fresh_rows, first.fresh_length, first.copied_tokens) == (1, 8, 1, 3, 0)
    assert (second.iterations, second.fresh_rows, second.fresh_length, second.copied_tokens) == (3, 0, 0, 12)
    assert first.conditions == second.conditions == digest(conditions)
