"""The settings of devices, on machines with and without GPUs, and the number of sequences at a time."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from safetensors.torch import load_file

from models.catalog.checkpoint import read_need
from models.errors import LoadError
from models.network.loader import LoadedModel
from server.composition.devices import cuda_devices, require_memory, require_room, swap_bytes, threads
from server.composition.loading import load_networks
from server.config import ServeConfig
from server.predictor_cores import PREDICTOR_NICENESS, run_beside_executors


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """16 cores and two GPUs."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    return monkeypatch


def free(machine: pytest.MonkeyPatch, size: float) -> None:
    """So much memory."""
    machine.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=size))


def config(**flags: object) -> ServeConfig:
    return ServeConfig(model="m", **flags)  # type: ignore[arg-type]


def test_executors_drive_a_gpu_each_unless_told_otherwise(machine: pytest.MonkeyPatch) -> None:
    assert cuda_devices(config()) == ["cuda:0", "cuda:1"]
    assert cuda_devices(config(executors=1)) == ["cuda:0"]
    assert cuda_devices(config(device="cpu", executors=3)) == []
    with pytest.raises(LoadError, match="only 2 CUDA devices are visible"):
        cuda_devices(config(executors=3))
    machine.setattr("torch.cuda.device_count", lambda: 0)
    assert cuda_devices(config()) == []
    with pytest.raises(LoadError, match="no CUDA device is visible"):
        cuda_devices(config(device="cuda"))


def test_executors_on_a_cpu_share_its_cores() -> None:
    assert [threads(config(executors=executors)) for executors in (0, 1, 3, 32)] == [16, 16, 5, 1]


def test_weights_that_cannot_fit_are_refused_before_they_are_read(
    machine: pytest.MonkeyPatch, tiny_model: LoadedModel, tiny_folder: Path
) -> None:
    need = read_need(tiny_folder)
    assert 4 * need.kv == tiny_model.kv.bytes_per_token and need.context == tiny_model.context_length
    stored = sum(one.numel() for one in load_file(tiny_folder / "model.safetensors").values())
    assert need.weights == stored > 2_500
    asked = config(dtype="float32", device="cpu")
    free(machine, 4 * stored)
    require_memory(asked, stored, torch.device("cpu"))
    free(machine, 4 * stored - 1)
    with pytest.raises(LoadError, match="m: its weights take .* GiB in float32, and .* GiB of cpu memory are free"):
        require_memory(asked, stored, torch.device("cpu"))
    with pytest.raises(LoadError, match="its weights take"):
        next(load_networks(asked, tiny_folder))


def test_rows_that_wait_take_a_quarter_of_free_memory_4_gib_at_most(machine: pytest.MonkeyPatch) -> None:
    for available, given, most in ((2, None, 0.5), (64, None, 4), (64, 10.0, 10), (64, 0.0, 0)):
        free(machine, available * 2**30)
        assert swap_bytes(config(swap_space=given)) == most * 2**30


def test_lengths_are_predicted_by_cores_that_no_executor_needs(machine: pytest.MonkeyPatch) -> None:
    set_threads, nice = Mock(), Mock()
    machine.setattr("torch.set_num_threads", set_threads)
    machine.setattr("os.nice", nice)
    for cores, gpus, device, count, gives_way in (
        (16, True, "auto", 4, False),
        (16, True, "cuda", 4, False),
        (16, True, "cpu", 1, True),
        (2, True, "auto", 1, False),
        (9, True, "auto", 2, False),
        (9, False, "auto", 1, True),
    ):
        machine.setattr("os.sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        machine.setattr("torch.cuda.is_available", lambda gpus=gpus: gpus)
        nice.reset_mock()
        run_beside_executors(device)
        assert set_threads.mock_calls[-1] == call(count)
        assert nice.mock_calls == [call(PREDICTOR_NICENESS)] * gives_way
    assert set_threads.call_count == 6


@pytest.fixture
def model(machine: pytest.MonkeyPatch) -> Any:
    """A model of 1 MiB of keys and values a token, on a machine with 20 GiB free."""
    free(machine, 20 * 2**30)
    return SimpleNamespace(device=torch.device("cpu"), kv=SimpleNamespace(bytes_per_token=2**20))


def test_memory_for_keys_and_values_that_the_machine_does_not_have_is_refused(model: Any) -> None:
    """The server said that it was ready, and the system ended it once it was busy."""
    with pytest.raises(LoadError, match=r"--kv-cache-memory 24: 1 x 24.0 GiB of .* into the 20.0 GiB that are free"):
        require_room(config(kv_cache_memory=24.0), model, 24 * 1024)
    with pytest.raises(LoadError, match=r"2 x 12.0 GiB"):
        require_room(config(kv_cache_memory=12.0, executors=2), model, 12 * 1024)
    require_room(config(kv_cache_memory=12.0), model, 12 * 1024)
    require_room(config(), model, 24 * 1024)


def test_more_memory_than_can_be_used_is_told(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    """--kv-cache-memory 16 was ready without a word where all rows together need 11."""
    require_room(config(kv_cache_memory=16.0), model, 11 * 1024)
    (record,) = caplog.records
    assert "--max-num-seqs 32 rows of the longest context need no more than 11.0 GiB" in record.getMessage()
