"""A live server for each test that asks for one, and what predictors are made from."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.config import ServeConfig
from tests.server.live import Live, live_server


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At places in line, so that no test waits for one."""
    for name in ("FIRST_LOOK", "PLACE_INTERVAL"):
        monkeypatch.setattr(f"server.api.output.sse.{name}", 0.01)


@pytest.fixture
def limits() -> ServeConfig:
    """Tests override this to give the server other limits."""
    return ServeConfig()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for models, predictors and the journal, empty."""
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.models import tiny_embedder  # which takes seconds to import

    return tiny_embedder.build(tmp_path_factory.mktemp("embedder"))


@pytest.fixture
async def live(request: pytest.FixtureRequest, limits: ServeConfig) -> AsyncIterator[Live]:
    """With as long a context as the module's CONTEXT says, if it does."""
    context = {"context_length": request.module.CONTEXT} if hasattr(request.module, "CONTEXT") else {}
    async with live_server(limits, **context) as live:
        yield live
