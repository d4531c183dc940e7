"""Who may call: names under which a server answers, and pages of other origins."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDictProxy

from server.access import Access
from server.api.errors import ApiError
from server.config import ConfigError, FrontConfig, ServeConfig
from server.http.front import Front, build_front, check_host, local_hosts
from server.keys import Keyring
from tests.server.live import Live, bearer, chat_body, live_server

CHAT = "/v1/chat/completions"
KEY = "a-long-key-for-the-tests"
PAGE = "https://chat.example"
ASKS = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


async def ask(live: Live, method: str, headers: Mapping[str, str]) -> tuple[int, CIMultiDictProxy[str]]:
    reply = await live.ask(method, CHAT, chat_body(stream=True) if method == "POST" else None, **headers)
    return reply.status, reply.headers


async def test_by_default_no_page_is_let_in_and_none_can_call_behind_the_users_back(live: Live) -> None:
    status, headers = await ask(live, "OPTIONS", ASKS)
    assert (status, "Access-Control-Allow-Origin" in headers) == (403, False)
    for site, expected in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        status, headers = await ask(live, "POST", {"Origin": PAGE, "Sec-Fetch-Site": site})
        assert (status, "Access-Control-Allow-Origin" in headers) == (expected, False)
    assert len(live.dispatcher.submitted) == 1


async def test_a_page_is_foreign_by_its_name_where_the_browser_does_not_say(live: Live) -> None:
    """Browsers send Sec-Fetch-Site to https and localhost alone: over http in a network, any page could call."""
    for origin, host, expected in (
        ("http://evil.example", "box.example:8000", 403),
        ("http://box.example", "box.example:8000", 403),
        ("null", "box.example:8000", 403),
        ("http://box.example:8000", "box.example:8000", 200),
        ("https://Box.example", "box.example", 200),
        (live.url, f"127.0.0.1:{live.port}", 200),
    ):
        assert (await ask(live, "POST", {"Origin": origin, "Host": host}))[0] == expected, origin
    assert (await ask(live, "GET", {"Origin": "http://evil.example"}))[0] == 405  # harmless, though not served here


async def test_an_origin_that_is_named_may_call_with_a_key_and_read_streams_and_errors() -> None:
    front = Front(Access(Keyring([KEY])), FrontConfig(allowed_origins=(PAGE,)))
    async with live_server(front=front) as live:
        status, headers = await ask(live, "OPTIONS", ASKS)
        assert (status, headers["Access-Control-Allow-Origin"]) == (204, PAGE)
        assert headers["Access-Control-Allow-Methods"] == "POST"
        assert headers["Access-Control-Allow-Headers"] == "authorization"
        call = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
        for more, expected in ((bearer(KEY), 200), ({}, 401)):
            status, headers = await ask(live, "POST", call | more)
            assert (status, headers["Access-Control-Allow-Origin"]) == (expected, PAGE)
            assert "Origin" in headers.getall("Vary")
        status, headers = await ask(live, "OPTIONS", ASKS | {"Origin": "https://other.example"})
        assert (status, "Access-Control-Allow-Origin" in headers) == (403, False)


async def test_all_origins_may_be_let_in_and_methods_and_headers_narrowed() -> None:
    settings = FrontConfig(allowed_origins=("*",), allowed_methods=("GET", "POST"), allowed_headers=("Authorization",))
    async with live_server(front=Front(settings=settings)) as live:
        _, headers = await ask(live, "OPTIONS", ASKS)
        assert headers["Access-Control-Allow-Origin"] == "*"
        assert headers["Access-Control-Allow-Methods"] == "GET, POST"
        assert headers["Access-Control-Allow-Headers"] == "Authorization"


NEEDY = [
    ({"allowed_origins": ("*",), "allow_credentials": True}, "--allow-credentials needs"),
    ({"uds_mode": "0660"}, "--uds-mode needs --uds"),
    ({"ssl_keyfile": Path("key.pem")}, "--ssl-keyfile needs --ssl-certfile"),
]


@pytest.mark.parametrize(("settings", "message"), NEEDY)
def test_what_needs_another_setting_is_refused_without_it(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_front(FrontConfig(**settings), {})


OURS = (
    *("localhost", "LOCALHOST:8000", "localhost.:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]", "127.0.0.2:9"),
    *("llm.example", ""),
)
OTHERS = ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "localhost:8000.evil.example")


@pytest.mark.parametrize(("host", "allowed"), [*((host, True) for host in OURS), *((host, False) for host in OTHERS)])
def test_a_name_is_compared_whole_without_its_port(host: str, allowed: bool) -> None:
    hosts = local_hosts("127.0.0.2", ["LLM.example"])
    with nullcontext() if allowed else pytest.raises(ApiError):
        check_host(hosts, host)


CHECKED = [
    (ServeConfig(), True),
    (ServeConfig(host="localhost"), True),
    (ServeConfig(host="0.0.0.0"), False),
    (ServeConfig(api_key=(KEY,)), False),
    (ServeConfig(uds="/tmp/socket"), False),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("config", "checked"), CHECKED)
def test_names_are_checked_where_anybody_on_the_machine_may_call(config: ServeConfig, checked: bool) -> None:
    assert (build_front(config, {}).hosts is not None) is checked


async def test_a_page_that_makes_its_own_name_mean_this_machine_is_refused() -> None:
    """The default server listed its models and generated for Host: evil.example (DNS rebinding)."""
    front = build_front(ServeConfig(allowed_hosts=("llm.example",)), {})
    async with live_server(front=front) as live:
        for host, expected in (("evil.example", 421), ("evil.example:80", 421), ("llm.example", 200), (None, 200)):
            reply = await live.get("/v1/models", **({} if host is None else {"Host": host}))
            assert reply.status == expected, host
            if expected == 421:
                assert reply.json["error"]["code"] == "host_not_allowed"
                assert "'evil.example'; --allowed-hosts names" in reply.json["error"]["message"]
