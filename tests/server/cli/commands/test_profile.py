"""`lengthwise profile` on a tiny checkpoint: what it prints, what it keeps, and how it fails."""

import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from engine.measure.profiler import GridCell, grid
from models.network.loader import LoadedModel
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.profile_file import load_profile, profile_path, read_profile
from server.cli import main as cli
from server.composition.devices import conditions_of
from server.composition.profiling import QUICK, make_profile, slice_cells
from server.config import ServeConfig
from tests.server.cli.commands.runner import Told

pytestmark = pytest.mark.usefixtures("cache")

CORES = len(os.sched_getaffinity(0))
"""As many executors leave each a thread, which is what suits a tiny network."""

FLAGS = [f"--executors={CORES}", "--dtype=float32", "--device=cpu", "--max-num-seqs=2", "--max-model-len=160"]


def config_for(folder: Path) -> ServeConfig:
    sizes: dict[str, Any] = {"executors": CORES, "max_num_seqs": 2, "max_model_len": 160}
    return ServeConfig(model=str(folder), dtype="float32", device="cpu", **sizes)


def test_the_command_prints_tables_and_fit_and_keeps_them(
    cache: Path, tiny_folder: Path, tiny_model: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    conditions = conditions_of(config_for(tiny_folder), tiny_model)
    assert cli.main(["profile", str(tiny_folder), "--quick", *FLAGS]) == 0
    output = capsys.readouterr()
    tables = ("prefill in ms", "one decode iteration in ms", "KV cache of a row to host memory and back in ms")
    fit = ("T_prefill(N, L) = ", "τ_decode(l, N)", "T_copy(L)", "slice of 128", "SCLS: 160 ms", "SCLS: 2300 ms")
    assert [said for said in (*tables, *fit) if said not in output.out] == []
    assert "copies" in output.err and "prefill" in output.err and "decode" in output.err
    path = profile_path(cache, conditions)
    assert output.out.endswith(f"kept in {path}\n")
    profile = read_profile(path)
    assert load_profile(cache, conditions) == profile
    assert [(one.rows, one.length) for one in profile.timings.prefill] == list(grid(2, 160, points=QUICK.points))
    assert len(profile.timings.decode) == len(profile.timings.prefill)
    assert [(one.rows, one.length, one.iterations) for one in profile.timings.slices] == [(1, 16, 128), (2, 16, 128)]
    assert profile.errors.slices is not None
    assert [(one.rows, one.length) for one in profile.timings.copies] == [(2, 16), (2, 51), (2, 160)]
    assert profile.model.copy(1) > 0 and profile.errors.copies is not None


def test_with_the_same_clock_the_same_profile_comes_out(tiny_folder: Path) -> None:
    """Each reading of the clock is a tenth of a second after the one before, so all that is timed takes as long."""
    ticks = count()
    config = config_for(tiny_folder)
    profile = make_profile(config, QUICK, 1e6, lambda *_: None, clock=lambda: next(ticks) / 10)
    assert {round(one.seconds, 6) for one in (*profile.timings.prefill, *profile.timings.decode)} == {0.1}
    assert profile.model.prefill(3, 100) == pytest.approx(0.1)
    assert profile.model.iteration(3, 100) == pytest.approx(0.1)
    assert profile.model.copy(100.0) == pytest.approx(0.05), "two rows at a time"
    assert (profile.errors.prefill, profile.errors.copies) == pytest.approx((0, 0), abs=1e-6)


def test_too_little_time_is_told_with_the_remedy(tiny_folder: Path, told: Told) -> None:
    said = told("profile", tiny_folder, *FLAGS, "--time-limit", "1e-9", code=1)
    assert "lengthwise: error: 0 prefill timings do not determine" in said and "raise --time-limit" in said


def test_a_cache_that_cannot_be_written_is_told_at_once(cache: Path, told: Told) -> None:
    """It was told after three minutes, and what had been measured was lost."""
    cache.write_text("a file where the folder should be")
    said = told("profile", "no/such/model", code=1)
    assert said.startswith(f"lengthwise: error: cannot write {cache}/profiles: ")


def test_settings_come_from_the_environment_too(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_MAX_NUM_SEQS", "many")
    assert cli.main(["profile", str(tiny_folder)]) == 78


def test_slices_spread_up_to_the_dearest_that_time_allows() -> None:
    model = Bilinear(0, 0, 1, 0, 0, 0, 0, 0)  # a second a prompt token
    cells = [GridCell(1, length) for length in (50, 10, 40, 20, 30)]
    assert slice_cells(cells, model, 3, 1000) == (GridCell(1, 20), GridCell(1, 30), GridCell(1, 50))
    assert slice_cells(cells, model, 5, 1000) == tuple(sorted(cells))
    assert slice_cells(cells, model, 2, 60) == (GridCell(1, 20), GridCell(1, 30))
    assert slice_cells(cells, model, 3, 35) == (GridCell(1, 30),)
    assert slice_cells(cells, model, 3, 15) == (GridCell(1, 10),)
    assert slice_cells(cells, model, 3, 5) == ()
