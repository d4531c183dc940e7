"""Prices of steps that a server keeps in its cache, and a cache that cannot be used."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.measure.timing import Timing, Timings
from models.errors import UserError
from scheduler.serving_time.bilinear import Bilinear, FitErrors
from scheduler.serving_time.machine import inline
from scheduler.serving_time.profile_file import VERSION, Conditions, Profile, load_profile, write_profile
from server.process import scheduling
from server.process.scheduling import learn_steps

CONDITIONS = Conditions("tiny", "float32", "none", "a processor", 2, 512)
MODEL = Bilinear(1, 2, 3, 4, 5, 6, 7, 8)
TIMINGS = Timings((Timing(1, 10, 0.5),), (Timing(2, 20, 0.25),))
PROFILE = Profile(CONDITIONS, "2026-01-01T00:00:00+00:00", "0", MODEL, FitErrors(0, 0, None), TIMINGS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path))
    return tmp_path


def test_a_server_begins_with_what_an_earlier_one_has_learned(cache: Path) -> None:
    learn_steps(CONDITIONS, inline)._keep(MODEL, TIMINGS)  # type: ignore[misc]
    kept = load_profile(cache, CONDITIONS)
    assert kept is not None and (kept.model, kept.timings) == (MODEL, TIMINGS)
    assert learn_steps(CONDITIONS, inline).machine.model == MODEL


def test_it_is_written_once_a_minute_at_most(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, written = iter((100.0, 110.0, 159.0, 160.0, 161.0)), []
    monkeypatch.setattr("server.process.scheduling.time.monotonic", lambda: next(times))
    monkeypatch.setattr(scheduling, "write_profile", lambda cache, profile: written.append(profile.model.p1))
    keep = learn_steps(CONDITIONS, inline)._keep
    assert keep is not None
    for number in range(5):
        keep(Bilinear(number, 2, 3, 4, 5, 6, 7, 8), TIMINGS)
    assert written == [0, 3]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda text: text[: len(text) // 2], "is not a profile"),
        (
            lambda text: text.replace('"version": 2', '"version": 1'),
            f"version 1 and this program reads version {VERSION}",
        ),
        (lambda text: text.replace('"p1": 1,', '"p1": -1,'), "must be finite and not negative"),
        (lambda text: text.replace('"p1": 1,', '"p1": NaN,'), "is not a profile"),
        (lambda text: text.replace('"seconds": 0.5', '"seconds": -0.5'), "a timing is of one row or more"),
        (lambda text: json.dumps({**json.loads(text), "conditions": None}), "is not a profile"),
        (lambda text: text.replace("a processor", "another processor"), "is a profile of"),
        (lambda text: text.replace("float32", "bfloat16"), "is a profile of"),
        (lambda text: text.replace("tiny", "other"), "is a profile of"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_warning_and_prices_are_learned_anew(
    cache: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[str], str], reason: str
) -> None:
    path = write_profile(cache, PROFILE)
    spoilt = spoil(path.read_text())
    assert spoilt != path.read_text()
    path.write_text(spoilt)
    learning = learn_steps(CONDITIONS, inline)
    assert learning.machine.model is None
    assert "prices are learned anew" in caplog.text and reason in caplog.text


def test_a_cache_that_cannot_be_written_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cache: Path, profile: Profile) -> Path:
        raise UserError("cannot write: No space left on device")

    monkeypatch.setattr(scheduling, "write_profile", fail)
    keep = learn_steps(CONDITIONS, inline)._keep
    assert keep is not None
    with caplog.at_level(logging.WARNING):
        keep(MODEL, TIMINGS)
    assert "are not kept: cannot write: No space left" in caplog.text
