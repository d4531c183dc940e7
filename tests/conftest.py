"""What several folders of tests share: a tiny checkpoint, loaded once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from models.loader import LoadedModel, load
from models.text import Text
from tests import tiny
from tests.live_server import serve
from tests.reference import Reference

# What a busy machine is slow at is no failure.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

CORES = torch.get_num_threads()
torch.set_num_threads(1)  # on tiny tensors, threads spend far more time waiting for each other than working


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Path) -> LoadedModel:
    torch.set_grad_enabled(False)
    return load(tiny_folder, dtype="float32")


@pytest.fixture(scope="session")
def tiny_text(tiny_folder: Path) -> Text:
    return Text.load(tiny_folder)


@pytest.fixture(scope="session")
def tiny_reference(tiny_folder: Path) -> Reference:
    return Reference(tiny_folder)


@pytest.fixture
def all_cores() -> Iterator[None]:
    """For tests with a model that is large enough to gain from threads."""
    torch.set_num_threads(CORES)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def live_url(tiny_folder: Path) -> Iterator[str]:
    """A real server with the tiny model, whose id is "tiny"."""
    with serve(tiny_folder) as url:
        yield url


@pytest.fixture(scope="session", autouse=True)
def interruptible_children() -> None:
    """A shell that runs the tests in the background has SIGINT ignored, which the programs under test would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
