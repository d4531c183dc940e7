"""Pages of other origins: what a browser is told, and what such a page cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from multidict import CIMultiDictProxy

from server.api.limits import Limits
from server.cli.config import ConfigError, FrontConfig
from server.http.access import Access
from server.http.front import Front, build_front
from server.http.keys import Keyring
from tests.server.live import Live, chat_body, live_server

CHAT = "/v1/chat/completions"
PAGE = "https://chat.example"
ASKS = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


async def ask(live: Live, method: str, headers: Mapping[str, str]) -> tuple[int, CIMultiDictProxy[str]]:
    body = chat_body(stream=True) if method == "POST" else None
    async with live.session.request(method, live.url + CHAT, json=body, headers=headers) as response:
        await response.read()
        return response.status, response.headers


async def test_by_default_no_page_is_let_in_and_none_can_call_behind_the_users_back(live: Live) -> None:
    status, headers = await ask(live, "OPTIONS", ASKS)
    assert (status, "Access-Control-Allow-Origin" in headers) == (403, False)
    for site, expected in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        status, headers = await ask(live, "POST", {"Origin": PAGE, "Sec-Fetch-Site": site})
        assert (status, "Access-Control-Allow-Origin" in headers) == (expected, False)
    assert len(live.dispatcher.submitted) == 1


async def test_programs_that_are_no_browsers_are_not_concerned(live: Live) -> None:
    assert (await ask(live, "POST", {}))[0] == 200
    assert (await ask(live, "POST", {"Origin": live.url}))[0] == 200


async def test_a_page_is_foreign_by_its_name_where_the_browser_does_not_say(live: Live) -> None:
    """Browsers send Sec-Fetch-Site to https and localhost alone: over http in a network, any page could call."""
    for origin, host, expected in (
        ("http://evil.example", "box.example:8000", 403),
        ("http://box.example", "box.example:8000", 403),
        ("null", "box.example:8000", 403),
        ("http://box.example:8000", "box.example:8000", 200),
        ("https://Box.example", "box.example", 200),
    ):
        assert (await ask(live, "POST", {"Origin": origin, "Host": host}))[0] == expected, origin
    assert (await ask(live, "GET", {"Origin": "http://evil.example"}))[0] == 405  # harmless, though not served here


async def test_an_origin_that_is_named_may_call_with_a_key_and_read_streams_and_errors(
    pool: ThreadPoolExecutor,
) -> None:
    key = "a-long-key-for-the-tests"
    front = Front(Access(Keyring([key])), FrontConfig(allowed_origins=(PAGE,)))
    async with live_server(pool, Limits(), front=front) as live:
        status, headers = await ask(live, "OPTIONS", ASKS)
        assert (status, headers["Access-Control-Allow-Origin"]) == (204, PAGE)
        assert headers["Access-Control-Allow-Methods"] == "POST"
        assert headers["Access-Control-Allow-Headers"] == "authorization"
        call = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
        for more, expected in (({"Authorization": f"Bearer {key}"}, 200), ({}, 401)):
            status, headers = await ask(live, "POST", call | more)
            assert (status, headers["Access-Control-Allow-Origin"]) == (expected, PAGE)
            assert "Origin" in headers.getall("Vary")
        status, headers = await ask(live, "OPTIONS", ASKS | {"Origin": "https://other.example"})
        assert (status, "Access-Control-Allow-Origin" in headers) == (403, False)


async def test_all_origins_may_be_let_in_and_methods_and_headers_narrowed(pool: ThreadPoolExecutor) -> None:
    settings = FrontConfig(allowed_origins=("*",), allowed_methods=("GET", "POST"), allowed_headers=("Authorization",))
    async with live_server(pool, Limits(), front=Front(settings=settings)) as live:
        _, headers = await ask(live, "OPTIONS", ASKS)
        assert headers["Access-Control-Allow-Origin"] == "*"
        assert headers["Access-Control-Allow-Methods"] == "GET, POST"
        assert headers["Access-Control-Allow-Headers"] == "Authorization"


def test_what_a_browser_knows_the_user_by_is_not_for_everybody() -> None:
    with pytest.raises(ConfigError, match="--allow-credentials"):
        build_front(FrontConfig(allowed_origins=("*",), allow_credentials=True), {})
