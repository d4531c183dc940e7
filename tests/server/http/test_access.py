"""Keys: which routes want one, what else opens them, that nothing shows them, and the quota of each."""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
from aiohttp import web

from server.access import Quota
from server.api.errors import ApiError
from server.config import load_config
from server.front_settings import Admission
from server.http.service import build_app
from server.keys import load_keys
from server.observe.logs import fields_of
from server.settings import ConfigError
from tests.server.fakes import ANSWER
from tests.server.live import Live, bearer, chat_body, live_server, text_of

KEYS = KEY, OTHER = "a-long-key-for-the-tests", "another-key-for-the-tests"
CHAT = "/v1/chat/completions"


def routes(live: Live) -> list[tuple[str, str]]:
    """Every method and path that there is, and one that is not."""
    app = build_app(live.service)
    found = [(route.method, route.resource) for route in app.router.routes()]
    paths = [(method, resource.canonical) for method, resource in found if isinstance(resource, web.AbstractResource)]
    return [(method, path.replace("{", "").replace("}", "")) for method, path in paths] + [("GET", "/nothing")]


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    """A server that wants one of the keys."""
    async with live_server(keys=KEYS) as live:
        yield live


async def test_a_wrong_key_is_said_to_be_one_wherever_it_stands(live: Live) -> None:
    for headers, wrong in (({"x-api-key": "eve"}, True), (bearer("eve"), True), ({}, False)):
        assert ("not one of" in (await live.refused(CHAT, chat_body(), 401, **headers))["message"]) is wrong


async def test_every_route_but_the_probes_wants_a_key(live: Live) -> None:
    assert len(routes(live)) > 5
    for method, path in routes(live):
        reply = await live.ask(method, path)
        if path in ("/health/live", "/health/ready"):
            assert reply.status == 200 and reply.body in (b'{"status":"ok"}', b"")
            continue
        assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, 'Bearer realm="Lengthwise"'), path
        if method != "HEAD":
            error, anthropics = reply.json["error"], ("authentication_error", None)
            words = anthropics if "/messages" in path else ("AuthenticationError", "invalid_api_key")
            assert (error["type"], error.get("code")) == words
    assert live.dispatcher.submitted == []


@pytest.mark.parametrize("key", [KEY, OTHER])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic"])
async def test_each_key_opens_as_a_token_or_as_a_browsers_password(live: Live, key: str, scheme: str) -> None:
    sent = base64.b64encode(f"anybody:{key}".encode()).decode() if scheme == "Basic" else key
    _, reply = await live.post(CHAT, chat_body(), Authorization=f"{scheme} {sent}")
    assert reply["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer wrong", f"Bearer {KEY}x", KEY, f"Token {KEY}", "Basic %%%", "Basic \xff", "Basic YQ=="],
)
async def test_anything_else_does_not(live: Live, value: str) -> None:
    async with live.connect() as (reader, writer):
        head = f"GET /v1/models HTTP/1.1\r\nHost: test\r\nAuthorization: {value}\r\n\r\n"
        writer.write(head.encode("latin-1"))
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")


async def test_no_host_header_and_no_path_gets_around_the_key(live: Live) -> None:
    """A server that rebuilt the URL from the Host header could be told that it was asked for liveness."""
    hosts = ["a/health/live?", "a/health/live#", "health", "[::1]/health/live", "a:80/health/live?x="]
    paths = ["/v1/models", "/v1/../health/live/../../v1/models", "//v1/models", "/health/live/../../v1/models"]
    for host in hosts:
        for path in paths:
            async with live.connect() as (reader, writer):
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                status = (await reader.readline()).split()[1]
                assert status in (b"400", b"401"), (host, path, status)


async def test_a_browser_that_asks_for_a_page_is_told_to_ask_its_user(live: Live) -> None:
    reply = await live.get("/", accept="text/html,*/*;q=0.8")
    assert reply.status == 401 and reply.headers["WWW-Authenticate"].startswith("Basic ")


async def test_each_key_has_its_own_share_and_is_told_when_it_has_used_it() -> None:
    async with live_server(keys=KEYS, admission=Admission(requests_per_minute=1)) as live:
        first, again, others = [await live.ask("POST", CHAT, chat_body(), **bearer(key)) for key in (KEY, KEY, OTHER)]
        assert (first.status, again.status, others.status) == (200, 429, 200)
        assert again.json["error"]["code"] == "rate_limit_exceeded" and 1 <= int(again.headers["Retry-After"]) <= 60
        assert (await live.get("/v1/models", **bearer(KEY))).status == 200


async def test_the_log_and_the_requests_name_a_caller_by_its_keys_digest(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "server.http.service")
    digest = sha256(KEY.encode()).hexdigest()[:8]
    await live.obtain(CHAT, chat_body(), **bearer(KEY))
    listed = (await live.get("/v1/requests", **bearer(KEY))).json["data"]
    assert [status["caller"] for status in listed] == [digest]
    assert (await live.get("/v1/models")).status == 401
    assert [fields_of(record)["caller"] for record in caplog.records] == [digest, digest, None]
    assert caplog.messages[0].endswith(f" by {digest}") and " by " not in caplog.messages[2]
    assert KEY not in caplog.text
    async with live_server() as open_to_all:
        await open_to_all.chat()
        assert [status["caller"] for status in (await open_to_all.get("/v1/requests")).json["data"]] == [None]


async def test_a_request_that_ends_makes_room_for_the_keys_next() -> None:
    async with live_server(admission=Admission(max_concurrent_requests=1)) as live:
        live.dispatcher.pause = 1
        stream = asyncio.create_task(live.stream_chat())
        await live.dispatcher.until(lambda: bool(live.dispatcher.submitted))
        error = await live.refused(CHAT, chat_body(), 429, code="rate_limit_exceeded")
        assert "key" not in error["message"], "there are none"
        live.dispatcher.release()
        assert text_of(await stream) == ANSWER
        await live.chat()


async def test_a_key_gets_no_more_answers_and_tokens_than_its_share() -> None:
    async with live_server(admission=Admission(max_concurrent_requests=2, tokens_per_minute=25)) as live:
        assert (await live.refused(CHAT, chat_body(n=3)))["param"] == "n"
        await live.chat(n=2, max_tokens=5)  # its prompt has some twenty tokens
        error = await live.refused(CHAT, chat_body(), 429)
        assert error["code"] == "rate_limit_exceeded" and "tokens in a minute" in error["message"]


COUNTING: tuple[tuple[str, dict[str, object]], ...] = (
    ("/tokenize", {"prompt": "Hello"}),
    ("/detokenize", {"tokens": [72] * 5}),
    ("/v1/estimate", {"prompt": "Hello"}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hello"}]}),
)


@pytest.mark.parametrize(("path", "body"), COUNTING)
@pytest.mark.parametrize("quota", [{"requests_per_minute": 1}, {"tokens_per_minute": 5}])
async def test_counting_calls_have_their_own_quota(path: str, body: dict[str, object], quota: dict[str, int]) -> None:
    """They had none: a key could keep the tokenizer from all others."""
    async with live_server(admission=Admission(**quota)) as live:
        assert [(await live.post(path, body))[0] for _ in range(2)] == [200, 429]
        assert await live.chat()


REFUSED: list[tuple[str, dict[str, object], int]] = [
    (CHAT, chat_body(temperature=9), 400),
    (CHAT, chat_body(model="another"), 404),
    ("/v1/completions", {"prompt": "x" * 100_000}, 400),
    ("/v1/messages", {"messages": []}, 400),
    ("/v1/estimate", {}, 400),
    (CHAT, chat_body(promise={"within_ms": 0.001}), 503),
    (CHAT, chat_body(deadline_ms=0.001), 504),
]


@pytest.mark.parametrize(("path", "body", "status"), REFUSED)
async def test_a_call_that_is_refused_uses_no_quota_up(path: str, body: dict[str, object], status: int) -> None:
    """A client with a mistake in it was kept from calling for a minute; what bounds these is their pace."""
    async with live_server(admission=Admission(requests_per_minute=2)) as live:
        assert {(await live.post(path, body))[0] for _ in range(5)} == {status}
        path, body = COUNTING[0] if "estimate" in path else (CHAT, chat_body())
        assert [(await live.post(path, body))[0] for _ in range(3)] == [200, 200, 429]


async def test_a_stream_whose_deadline_passes_before_its_first_token_uses_no_quota_up() -> None:
    async with live_server(admission=Admission(requests_per_minute=2)) as live:
        for _ in range(5):
            (event,) = await live.stream_chat(deadline_ms=0.001)
            assert event["error"]["code"] == "deadline_exceeded"
        assert [(await live.post(CHAT, chat_body()))[0] for _ in range(3)] == [200, 200, 429]


def test_of_requests_at_one_time_only_the_refused_one_is_forgiven() -> None:
    quota = Quota(Admission(requests_per_minute=2))
    quota.enter("a", 0.0)
    quota.forgive(quota.enter("a", 0.0))
    share = quota.enter("a", 1.0)
    wait_of(quota, 2.0)
    quota.enter("a", 60.5)
    quota.forgive(share)
    quota.forgive(share)  # counts once
    quota.enter("a", 61.5)
    wait_of(quota, 61.6)


def keys_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "keys"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_keys_come_from_flags_a_file_and_a_credential_together(tmp_path: Path) -> None:
    file = keys_file(tmp_path, "# ours\n\nkey-number-two-0\n  key-number-three  \n")
    (tmp_path / "api-keys").write_text("key-number-four-\n")
    keys = load_keys(["key-number-one-0"], file, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert len(keys) == 4
    known = ["key-number-one-0", "key-number-two-0", "key-number-three", "key-number-four-"]
    assert len({keys.holder(key) for key in known} - {None}) == 4
    assert keys.holder("# ours") is keys.holder("") is None


WEIGHT = "line 1: behind a key may stand its weight"
USELESS = [
    *((text, "--api-key-file") for text in ("", "# none\n\n", "two words\n", "\xe4\xf6\xfc\n")),
    *((f"{KEY} {weight}\n", WEIGHT) for weight in ("0", "-1", "nan", "inf", "heavy", "1 2")),
]


@pytest.mark.parametrize(("text", "said"), USELESS)
def test_a_file_without_usable_keys_is_refused_and_not_quoted(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        load_keys([], keys_file(tmp_path, text), {})
    assert not text.strip("# \n") or text.split(" ")[0].strip() not in str(error.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--api-key-file .* cannot be read: No such file"):
        load_keys([], tmp_path / "absent", {})


def test_a_key_may_have_a_weight_behind_it(tmp_path: Path) -> None:
    keys = load_keys([], keys_file(tmp_path, f"{KEY} 2.5\n{OTHER}\n"), {})
    assert [keys.shares[keys.holder(key) or ""] for key in (KEY, OTHER)] == [2.5, 1.0]


def test_weak_and_readable_keys_are_warned_of_and_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_keys([], keys_file(tmp_path, "hunter2\n", 0o644), {})
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "hunter2" not in caplog.text


def test_the_environment_holds_several_keys_and_no_configuration_shows_them() -> None:
    config = load_config({}, {"LENGTHWISE_API_KEY": f"{KEY},{OTHER}"}, None)
    assert config.api_key == (KEY, OTHER)
    assert KEY not in repr(config) and KEY not in str(config)


def wait_of(quota: Quota, now: float, said: str = ".", limits: Admission | None = None) -> str:
    """What a key is told to wait that is refused now."""
    with pytest.raises(ApiError, match=said) as refused:
        quota.enter("a", now, limits)
    return refused.value.headers["Retry-After"]


def test_no_minute_sees_more_requests_than_allowed() -> None:
    quota = Quota(Admission(requests_per_minute=3))
    for now in (0.0, 10.0, 20.0):
        quota.enter("a", now)
    assert wait_of(quota, 45.0) == "15"
    quota.enter("a", 60.0)
    assert wait_of(quota, 61.0) == "9"


def test_a_key_has_only_so_many_requests_at_a_time_and_refused_ones_count_for_nothing() -> None:
    quota = Quota(Admission(requests_per_minute=3, max_concurrent_requests=2))
    share = quota.enter("a", 0.0)
    quota.enter("a", 0.0)
    for _ in range(5):
        wait_of(quota, 1.0, "at a time")
    quota.leave(share)
    quota.enter("a", 2.0)


def test_answers_count_and_not_the_requests_that_ask_for_them() -> None:
    """One request with n = 64 took all slots of a server whose keys may have one at a time."""
    quota = Quota(Admission(max_concurrent_requests=4))
    share, other = quota.enter("a", 0.0), quota.enter("a", 0.0)
    quota.count_answers(share, 3)
    with pytest.raises(ApiError, match="3 answers are under way, and 4 may be"):
        quota.count_answers(other, 2)
    quota.leave(other)
    with pytest.raises(ApiError, match="5 answers are more than the 4"):
        quota.count_answers(share, 5)
    quota.leave(share)
    quota.count_answers(quota.enter("a", 0.0), 4)


def test_no_request_begins_in_a_minute_that_has_seen_its_tokens() -> None:
    quota = Quota(Admission(tokens_per_minute=100))
    quota.enter("a", 0.0)
    quota.spend("a", 60, 0.0)
    quota.enter("a", 10.0)
    quota.spend("a", 70, 10.0)
    assert wait_of(quota, 20.0, "130 tokens in a minute, of 100") == "40"
    quota.enter("b", 20.0)
    quota.enter("a", 60.0)


def test_a_request_in_the_background_leaves_half_of_everything_to_others() -> None:
    """Lines of a batch counted for nothing."""
    quota = Quota(Admission(requests_per_minute=6, max_concurrent_requests=4, tokens_per_minute=100))
    shares = [quota.enter("a", 0.0, quota.background) for _ in range(2)]
    wait_of(quota, 0.0, "2 answers are under way, and 2 may be", quota.background)
    shares.append(quota.enter("a", 0.0))
    for share in shares:
        quota.leave(share)
    wait_of(quota, 1.0, "3 requests in a minute", quota.background)
    quota.spend("a", 50, 2.0)
    quota.leave(quota.enter("a", 3.0))
    wait_of(quota, 61.0, "50 tokens in a minute, of 50", quota.background)


def test_background_requests_for_many_answers_do_not_wait_for_each_other_for_ever() -> None:
    quota = Quota(Admission(max_concurrent_requests=4))
    first, second = (quota.enter("a", 0.0, quota.background) for _ in range(2))
    with pytest.raises(ApiError):
        quota.count_answers(first, 4)
    quota.count_answers(second, 4)
    with pytest.raises(ApiError):
        quota.count_answers(first, 1)
    quota.leave(second)
    quota.count_answers(first, 4)
