"""A live server for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.service import Limits
from tests.server.live import Live, live_server


@pytest.fixture
def limits() -> Limits:
    """Tests override this to give the server other limits."""
    return Limits()


@pytest.fixture(scope="session")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
async def live(pool: ThreadPoolExecutor, limits: Limits) -> AsyncIterator[Live]:
    async with live_server(pool, limits) as live:
        yield live
