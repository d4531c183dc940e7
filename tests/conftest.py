"""Fixtures of several folders of tests: a tiny checkpoint, loaded once, a server with it, and clients."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, settings

from models.catalog.catalog import default_cache
from models.network.loader import LoadedModel, load
from models.text import Text
from tests import tiny
from tests.browser import chromium
from tests.live_server import serve_here
from tests.reference import Reference

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

# What a busy machine is slow at is no failure.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

CORES = torch.get_num_threads()
torch.set_num_threads(1)  # on tiny tensors, threads spend far more time waiting for each other than working


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files in which a test takes long first, then those of the whole program: no worker shall be left alone with
    one of them at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, len(item.path.parts)))


def pytest_collectstart() -> None:
    """Nothing of what is collected is garbage, and looking for some took two seconds of nine."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Modules and thousands of items stay: a full collection, which some tests ask for, took 0.6 s to look at them."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> None:
    """What earlier modules left alive is not looked at again: collections of some tests took seconds each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """Commands and servers that a test runs in this process choose threads for it, and torch's sums depend on them."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the tests' own, in which the user's models are: what servers of tests learn is not for the user's."""
    models, own = default_cache() / "packaged", tmp_path_factory.mktemp("cache")
    models.mkdir(parents=True, exist_ok=True)
    (own / "packaged").symlink_to(models.resolve())
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LENGTHWISE_CACHE", str(own))
        yield own


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Chromium, for tests that are skipped where there is none."""
    with chromium(tmp_path_factory.mktemp("chromium")) as address:
        yield address


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
def net(tiny_model: LoadedModel, tiny_text: Text) -> tiny.Net:
    return tiny.Net(tiny_model, tiny_text)


@pytest.fixture(scope="session")
def tiny_reference(tiny_folder: Path) -> Reference:
    return Reference(tiny_folder)


@pytest.fixture
def all_cores() -> None:
    """For tests with a model that is large enough to gain from threads: this process's part of the cores."""
    torch.set_num_threads(max(1, CORES // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))))


@pytest.fixture(scope="session")
def live_url(tiny_folder: Path) -> Iterator[str]:
    """A real server with the tiny model, whose id is "tiny"."""
    with serve_here(tiny_folder) as url:
        yield url


@pytest.fixture(scope="session")
def url(live_url: str) -> str:
    """The server that the clients talk to; modules with a server of their own override it."""
    return live_url


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    """The official client."""
    from openai import OpenAI  # which takes a second to import

    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def many(url: str) -> AsyncIterator[AsyncOpenAI]:
    """A client of the server for many requests at a time."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session", autouse=True)
def interruptible_children() -> None:
    """A shell that runs the tests in the background has SIGINT ignored, which the programs under test would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def interpreter_settings() -> Iterator[None]:
    """Let the collector and the threads of Python be as they were when the test is over."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)
