"""SIGHUP takes keys and certificates anew, and leaves those that serve where the new ones are of no use."""

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from server.config import ServeConfig
from server.http.front import build_front, reload_on_hangup
from tests.certificates import make_certificate
from tests.server.live import Live, live_server

OLD, NEW = "old-key-of-ours-0123456789", "new-key-of-ours-0123456789"


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: False)


@asynccontextmanager
async def reloading(config: ServeConfig) -> AsyncIterator[Live]:
    front = build_front(config, {})
    async with live_server(front=front) as live:
        with reload_on_hangup(front, config, {}):
            yield live


async def hang_up(caplog: pytest.LogCaptureFixture) -> str:
    """Send SIGHUP to this process; returns what it logs about it."""
    caplog.clear()
    caplog.set_level("INFO")
    os.kill(os.getpid(), signal.SIGHUP)
    while not (said := [one.getMessage() for one in caplog.records if "SIGHUP" in one.getMessage()]):
        await asyncio.sleep(0)
    return said[0]


async def test_a_key_is_withdrawn_and_another_let_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text(OLD)
    async with reloading(ServeConfig(api_key_file=file)) as live:

        async def statuses() -> list[int]:
            return [(await live.get("/v1/models", x_api_key=key)).status for key in (OLD, NEW)]

        assert await statuses() == [200, 401]
        file.write_text(f"{NEW} 2\n")
        assert await hang_up(caplog) == "SIGHUP: read 1 keys and no certificate anew"
        assert await statuses() == [401, 200]
        file.write_text("")
        assert "stay as they were: --api-key-file" in await hang_up(caplog)
        assert await statuses() == [401, 200]


async def test_new_connections_get_the_new_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = make_certificate(tmp_path, "first")
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE

    async with reloading(ServeConfig(ssl_certfile=certificate, ssl_keyfile=key)) as live:

        async def shown() -> str:
            _, writer = await asyncio.open_connection("127.0.0.1", live.port, ssl=anyone)
            found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            await writer.wait_closed()
            return ssl.DER_cert_to_PEM_cert(found).strip()

        old = certificate.read_text().strip()
        assert await shown() == old
        second, second_key = make_certificate(tmp_path, "second")
        certificate.write_text(second.read_text())
        assert "cannot be used" in await hang_up(caplog), "its key is still the first one's"
        assert await shown() == old
        key.write_text(second_key.read_text())
        assert await hang_up(caplog) == "SIGHUP: read 0 keys and the certificate anew"
        assert await shown() == second.read_text().strip() != old


async def test_on_a_terminal_sighup_keeps_its_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    config = ServeConfig()
    with reload_on_hangup(build_front(config, {}), config, {}):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
