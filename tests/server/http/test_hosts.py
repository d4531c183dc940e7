"""Names under which a server answers: on a loopback address, no page can come by a name of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from server.api.errors import ApiError
from server.api.limits import Limits
from server.cli.config import ServeConfig
from server.http.front import build_front, check_host, local_hosts
from tests.server.live import live_server

KEY = "a-long-key-for-the-tests"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("localhost.:8000", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("[::1]", True),
        ("127.0.0.2:9", True),
        ("llm.example", True),
        ("", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("localhost:8000.evil.example", False),
    ],
)
def test_a_name_is_compared_whole_without_its_port(host: str, allowed: bool) -> None:
    hosts = local_hosts("127.0.0.2", ["LLM.example"])
    with nullcontext() if allowed else pytest.raises(ApiError):
        check_host(hosts, host)


@pytest.mark.parametrize(
    ("config", "checked"),
    [
        (ServeConfig(), True),
        (ServeConfig(host="localhost"), True),
        (ServeConfig(host="0.0.0.0"), False),
        (ServeConfig(api_key=(KEY,)), False),
        (ServeConfig(uds="/tmp/socket"), False),  # type: ignore[arg-type]
    ],
)
def test_names_are_checked_where_anybody_on_the_machine_may_call(config: ServeConfig, checked: bool) -> None:
    assert (build_front(config, {}).hosts is not None) is checked


async def test_a_page_that_makes_its_own_name_mean_this_machine_is_refused(pool: ThreadPoolExecutor) -> None:
    """The default server listed its models and generated for Host: evil.example (DNS rebinding)."""
    front = build_front(ServeConfig(allowed_hosts=("llm.example",)), {})
    async with live_server(pool, Limits(), front=front) as live:
        for host, expected in (("evil.example", 421), ("evil.example:80", 421), ("llm.example", 200), (None, 200)):
            headers = {} if host is None else {"Host": host}
            async with live.session.get(f"{live.url}/v1/models", headers=headers) as response:
                assert response.status == expected, host
                error = (await response.json()).get("error")
            if expected == 421:
                assert error["code"] == "host_not_allowed"
                assert "'evil.example'; --allowed-hosts names" in error["message"]
