"""The number of sequences at a time: measured once on a quiet machine, and again where something speaks against it."""

import json
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from engine.measure.profiler import QUICK_REPEATS
from engine.measure.timing import Timings
from models.network.loader import LoadedModel
from models.text import Text
from scheduler.serving_time.bilinear import Bilinear, FitErrors
from scheduler.serving_time.profile_file import Profile, write_profile
from server.composition import slots
from server.composition.devices import conditions_of
from server.composition.slots import CUDA_SLOTS, choose_slots, others_seconds
from server.config import ServeConfig
from tests.engine.measure.test_profiler import Device
from tests.engine.rows import faulty

Choose: TypeAlias = Callable[..., int]


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """CPU seconds of other work as they are read, of which the last is read again; none at first."""
    readings = [0.0]
    monkeypatch.setattr(slots, "others_seconds", lambda: readings.pop(0) if len(readings) > 1 else readings[0])
    return readings


def config_of(folder: Path, **flags: Any) -> ServeConfig:
    return ServeConfig(model=str(folder), dtype="float32", device="cpu", **flags)


@pytest.fixture
def choose(tiny_folder: Path, tiny_model: LoadedModel, tiny_text: Text, tmp_path: Path) -> Choose:
    """The number that a device of these times gets, where flags and a cache folder may be given."""

    def slots_of(device: Device, cache: Path = tmp_path, **flags: Any) -> int:
        network = faulty(tiny_model, device.run)
        return choose_slots(config_of(tiny_folder, **flags), network, tiny_text, cache, device.clock).slots

    return slots_of


def flat_beyond_32(rows: int, columns: int, decodes: bool) -> float:
    return max(0.01, 0.01 * rows / 32)


def test_machines_are_measured_once(choose: Choose, tmp_path: Path) -> None:
    device = Device(flat_beyond_32)
    assert choose(device) == 32
    assert max(rows for rows, _, _ in device.passes) == 64
    (kept,) = (tmp_path / "slots").iterdir()
    device.passes.clear()
    assert choose(device) == 32 and not device.passes
    told = json.loads(kept.read_bytes())
    rows = [(step["rows"], step["length"]) for step in told["timings"]["decode"]]
    assert rows == [(8, 128), (16, 128), (32, 128), (64, 128), (8, 512)]
    assert [(read["rows"], read["length"]) for read in told["timings"]["prefill"]] == [(1, 16), (1, 128)]
    assert datetime.fromisoformat(told["measured_at"]).tzinfo and told["others"] == 0
    kept.write_text(json.dumps(told | {"slots": 64}))
    assert choose(device) == 64, "what is kept decides"


def test_a_number_not_found_is_for_one_run(choose: Choose, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A busy machine's first start kept 32, which was then read at all later ones."""
    busy, quiet = Device(lambda rows, columns, decodes: 2.0), Device(flat_beyond_32)
    assert choose(busy) == 32
    assert not (tmp_path / "slots").exists() and "took more than 3 s" in caplog.text
    assert sum(not decodes for _, _, decodes in busy.passes) == QUICK_REPEATS, "a slow machine reads the short one only"
    choose(quiet)
    assert quiet.passes and len(list((tmp_path / "slots").iterdir())) == 1


def test_other_conditions_are_measured_anew(choose: Choose, tmp_path: Path) -> None:
    for chunk in (512, 256):
        choose(device := Device(flat_beyond_32), max_num_batched_tokens=chunk)
        assert device.passes
    assert len(list((tmp_path / "slots").iterdir())) == 2


def test_a_file_that_is_broken_or_cannot_be_written_keeps_nothing_from_starting(
    choose: Choose, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device(flat_beyond_32)
    choose(device)
    (kept,) = (tmp_path / "slots").iterdir()
    slow = '{"slots": 8, "timings": {"prefill": [{"rows": 1, "length": 16, "seconds": 1e300}]}}'
    for broken in ("{", "32", '{"slots": 0, "measured_at": "", "others": 0}', slow):
        kept.write_text(broken)
        assert choose(device) == 32
    (tmp_path / "file").touch()
    assert choose(device, tmp_path / "file") == 32
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 6 and "measured again" in told[0] and "at the next start" in told[-1]


def fastest_at(most: int) -> Any:
    """Throughput rises up to so many rows."""
    return lambda rows, columns, decodes: max(0.01, 0.01 * rows / most)


def test_a_busy_start_counts_meanwhile(choose: Choose, others: list[float], caplog: pytest.LogCaptureFixture) -> None:
    """The first start of a machine, beside two loops, kept 8 sequences for ever, where 32 are right."""
    caplog.set_level(logging.INFO)

    def start(most: int, busy: float) -> int:
        others[:] = [0.0, busy]
        found = choose(device := Device(fastest_at(most)))
        measured.append(bool(device.passes))
        return found

    measured: list[bool] = []
    assert start(8, busy=1e3) == 8 and "other work: the next start measures again" in caplog.text
    assert start(16, busy=1e6) == 8, "a busier one tells less"
    assert start(64, busy=0.0) == 64
    assert start(16, busy=0.0) == 64
    assert measured == [True, True, True, False]


DISAGREEING = [
    (Bilinear(d2=1e-4, d4=0.01), True),  # 128 bring more than 64
    (Bilinear(d2=2e-3, d4=0.01), False),  # 32 bring most of what there is
    (Bilinear(d2=3e-3), False),  # degenerate: it says 8
]


@pytest.mark.parametrize(("learned", "again"), DISAGREEING)
def test_they_are_measured_again_where_what_was_learned_disagrees(
    learned: Bilinear, again: bool, choose: Choose, tiny_folder: Path, tiny_model: LoadedModel, tmp_path: Path
) -> None:
    choose(Device(flat_beyond_32))
    conditions = conditions_of(config_of(tiny_folder), tiny_model)
    found = Profile(conditions, "2026-11-27", "", learned, FitErrors(0, 0, None), Timings())
    write_profile(tmp_path, found, learned=True)
    assert choose(faster := Device(fastest_at(64))) == (64 if again else 32)
    assert bool(faster.passes) is again


def test_the_time_of_others_is_what_our_cores_had_and_we_had_not(monkeypatch: pytest.MonkeyPatch) -> None:
    core = SimpleNamespace(user=5.0, nice=1.0, system=2.0, steal=0.5, idle=100.0, iowait=9.0)
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: [core, core, core])
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2})
    monkeypatch.setattr("time.process_time", lambda: 7.0)
    assert others_seconds() == 10.0


def test_memory_bounds_them_unkept(choose: Choose, tiny_model: LoadedModel, tmp_path: Path) -> None:
    device = Device(lambda rows, columns, decodes: 0.01)
    row = 128 * tiny_model.kv.bytes_per_token / 2**30  # GiB
    assert choose(device, kv_cache_memory=20 * row) == 16 and choose(device, kv_cache_memory=row) == 1
    assert not (tmp_path / "slots").exists()


def test_given_a_number_steps_are_timed_once(choose: Choose, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first promise of such a server was refused."""
    caplog.set_level(logging.INFO)
    device = Device(flat_beyond_32)
    assert choose(device, max_num_seqs=5) == 5 and device.passes and not caplog.records
    device.passes.clear()
    assert choose(device, max_num_seqs=6) == 6 and choose(device) == 32 and not device.passes
    assert choose(Device(lambda rows, columns, decodes: 2.0), tmp_path / "slow", max_num_seqs=7) == 7
    assert not caplog.records


def test_cuda_is_not_measured(tmp_path: Path) -> None:
    cuda: Any = SimpleNamespace(device=SimpleNamespace(type="cuda"), kv=SimpleNamespace(bytes_per_token=2**20))
    text: Any = None
    assert choose_slots(config_of(tmp_path, max_num_seqs=7), cuda, text, tmp_path).slots == 7
    assert choose_slots(config_of(tmp_path, kv_cache_memory=100.0), cuda, text, tmp_path).slots == CUDA_SLOTS == 256
    assert choose_slots(config_of(tmp_path, kv_cache_memory=2.0), cuda, text, tmp_path).slots == 16
