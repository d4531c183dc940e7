"""The number of sequences at a time: as given, as measured once, or as memory allows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.network.loader import LoadedModel
from models.text import Text
from server.cli.config import ServeConfig
from server.composition.devices import CUDA_SLOTS, choose_slots
from tests.engine.measure.test_profiler import Device
from tests.engine.rows import faulty


def config(folder: Path, **flags: Any) -> ServeConfig:
    return ServeConfig(model=str(folder), dtype="float32", device="cpu", **flags)


def flat_beyond_32(rows: int, columns: int, decodes: bool) -> float:
    return max(0.01, 0.01 * rows / 32)


def test_a_machine_is_measured_once(
    tiny_folder: Path, tiny_model: LoadedModel, tiny_text: Text, tmp_path: Path
) -> None:
    device, asked = Device(flat_beyond_32), config(tiny_folder)
    model = faulty(tiny_model, device.run)
    assert choose_slots(asked, model, tiny_text, tmp_path, device.clock) == 32
    assert max(rows for rows, _, _ in device.passes) == 64 and all(decodes for _, _, decodes in device.passes)
    (kept,) = (tmp_path / "slots").iterdir()
    device.passes.clear()
    assert choose_slots(asked, model, tiny_text, tmp_path, device.clock) == 32 and not device.passes
    kept.write_text("64")
    assert choose_slots(asked, model, tiny_text, tmp_path, device.clock) == 64, "what is kept decides"


def test_a_number_that_measuring_had_no_time_to_find_is_for_one_run(
    tiny_folder: Path, tiny_model: LoadedModel, tiny_text: Text, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A busy machine's first start kept 32, which was then read at all later ones."""
    busy, quiet = Device(lambda rows, columns, decodes: 2.0), Device(flat_beyond_32)
    model = faulty(tiny_model, busy.run)
    assert choose_slots(config(tiny_folder), model, tiny_text, tmp_path, busy.clock) == 32
    assert not (tmp_path / "slots").exists() and "took more than 3 s" in caplog.text
    choose_slots(config(tiny_folder), faulty(tiny_model, quiet.run), tiny_text, tmp_path, quiet.clock)
    assert quiet.passes and len(list((tmp_path / "slots").iterdir())) == 1


def test_other_conditions_are_measured_anew(
    tiny_folder: Path, tiny_model: LoadedModel, tiny_text: Text, tmp_path: Path
) -> None:
    device = Device(flat_beyond_32)
    for chunk in (512, 256):
        device.passes.clear()
        asked = config(tiny_folder, max_num_batched_tokens=chunk)
        choose_slots(asked, faulty(tiny_model, device.run), tiny_text, tmp_path, device.clock)
        assert device.passes
    assert len(list((tmp_path / "slots").iterdir())) == 2


def test_a_file_that_is_broken_or_cannot_be_written_keeps_nothing_from_starting(
    tiny_folder: Path, tiny_model: LoadedModel, tiny_text: Text, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device(flat_beyond_32)
    model = faulty(tiny_model, device.run)
    choose_slots(config(tiny_folder), model, tiny_text, tmp_path, device.clock)
    (kept,) = (tmp_path / "slots").iterdir()
    kept.write_text("{")
    assert choose_slots(config(tiny_folder), model, tiny_text, tmp_path, device.clock) == 32
    (tmp_path / "file").touch()
    assert choose_slots(config(tiny_folder), model, tiny_text, tmp_path / "file", device.clock) == 32
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 3 and "measured again" in told[0] and "at the next start" in told[-1]


def test_memory_bounds_them_and_is_not_kept(
    tiny_folder: Path, tiny_model: LoadedModel, tiny_text: Text, tmp_path: Path
) -> None:
    device = Device(lambda rows, columns, decodes: 0.01)
    asked = config(tiny_folder, kv_cache_memory=20 * 128 * tiny_model.kv.bytes_per_token / 2**30)
    assert choose_slots(asked, faulty(tiny_model, device.run), tiny_text, tmp_path, device.clock) == 16
    assert not (tmp_path / "slots").exists()


def test_a_number_that_is_given_and_cuda_are_not_measured(tmp_path: Path) -> None:
    cuda: Any = SimpleNamespace(device=SimpleNamespace(type="cuda"), kv=SimpleNamespace(bytes_per_token=2**20))
    text: Any = None
    assert choose_slots(config(tmp_path, max_num_seqs=7), cuda, text, tmp_path) == 7
    assert choose_slots(config(tmp_path, kv_cache_memory=100.0), cuda, text, tmp_path) == CUDA_SLOTS == 256
    assert choose_slots(config(tmp_path, kv_cache_memory=2.0), cuda, text, tmp_path) == 16
