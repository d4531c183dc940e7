"""A server with an empty folder for files."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.api.batches.served import server
from tests.server.live import Live


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with server(tmp_path) as live:
        yield live
