"""Several backends of which one is at fault: its calls go to another, and it is tried again by one call."""

import asyncio
import logging
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from server.gateway.health import EJECTED, LONGEST, Health
from server.gateway.sending import RETRIES
from server.observe.logs import fields_of
from server.process.life import summarize
from tests.server.gateway import processes
from tests.server.gateway.backends import Backend, Gateway, chat, crowded, gateway, until
from tests.server.gateway.test_hostile import EVENTS, GOOD, TOKEN, Hostile, answer, plain

CALLS = 32
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
BEGUN = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(TOKEN), TOKEN)


class Faulty(Hostile):
    """Answers as it is told to, and then waits for ever where a kind says so."""

    stalls = gone = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.stalls:
            await super().serve(reader, writer)
            return
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            self.heads.append(head)
            writer.write(self.kind)
        elif not self.gone:
            writer.write(plain(b"{}"))
            writer.write_eof()
        await reader.read()  # until the gateway leaves
        writer.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.gateway.probe.PERIOD", 0.01)
    monkeypatch.setattr("server.gateway.sending.PAUSE", 0.01)
    monkeypatch.setattr("server.gateway.health.REST", 0.05)


def failing(status: bytes, *lines: bytes) -> bytes:
    return answer(b'{"error": "theirs"}', *lines, status=status, kind=b"application/json")


async def outcomes(gate: Gateway, count: int = CALLS, **fields: Any) -> Counter[Any]:
    """How calls end that come one behind another, four at a time."""
    ends: Counter[Any] = Counter()
    left = iter(range(count))

    async def ask() -> None:
        for _ in left:
            status, told = await gate.ask(**fields)
            ends[status if told == EVENTS or status != 200 else told] += 1

    await asyncio.gather(*(ask() for _ in range(4)))
    return ends


# how a backend fails -> what it sends, whether it stalls then, and most calls that are lost
FAILURES: dict[str, tuple[bytes, bool, int]] = {
    "503": (failing(b"503 Loading"), False, 0),
    "429": (failing(b"429 Busy", b"Retry-After: 1"), False, 0),
    "429 with a date": (failing(b"429 Busy", b"Retry-After: Fri, 27 Nov 2026 20:00:00 GMT"), False, 0),
    "502": (failing(b"502 No engine"), False, 0),
    "504": (failing(b"504 Late"), False, 0),
    "500": (failing(b"500 Broken"), False, EJECTED - 1),
    "408": (failing(b"408 Late"), False, EJECTED - 1),
    "529": (failing(b"529 Overloaded"), False, 0),
    "an error event": (answer(b'data: {"error": {"message": "x"}}\n\n'), False, EJECTED - 1),
    "a redirect": (answer(b"", b"Location: http://127.0.0.1:1/", status=b"302 Found"), False, 0),
    "a control character": (answer(EVENTS, b"X-A: a\x01b"), False, 0),
    "cut": (b"", False, 0),
    "half a header": (b"HTTP/1.1 200 OK\r\nContent-Ty", False, 0),
    "stalls before headers": (b"", True, 0),
    "stalls in its headers": (HEAD, True, 0),
    "stalls behind its headers": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", True, 0),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_backend_that_fails_before_a_byte_loses_no_calls(failure: str, stream: bool) -> None:
    kind, stalls, lost = FAILURES[failure]
    faulty, good = Faulty(kind), Hostile(answer(EVENTS) if stream else plain(b'{"whole": 1}'))
    faulty.stalls = stalls
    async with gateway(faulty, good, first_byte_timeout=0.4 * stalls) as gate:
        ends = await outcomes(gate, 20 if stalls else CALLS, stream=stream, x=1)
        assert faulty.heads and ends.total() - sum(ends[one] for one in (200, b'{"whole": 1}')) <= lost, ends
        faulty.stalls, faulty.kind = False, good.kind  # it is well, is tried by a call, and serves again
        served = len(faulty.heads)
        while len(faulty.heads) < served + 3:
            await outcomes(gate, 8, stream=stream, x=1)


@pytest.mark.usefixtures("quick")
async def test_a_list_of_models_comes_from_another_backend_where_one_stalls() -> None:
    faulty, good = Faulty(b""), Hostile(plain(b'{"whole": 1}'))
    async with gateway(faulty, good, first_byte_timeout=0.4) as gate:
        faulty.stalls = faulty.gone = True
        async with asyncio.timeout(8):
            assert await gate.get("/v1/models/x") == {"whole": 1}


async def test_a_stream_that_stalls_ends_with_an_error_and_a_whole_answer_goes_elsewhere() -> None:
    faulty, good = Faulty(BEGUN), Hostile()
    faulty.stalls = True
    async with gateway(faulty, good, idle_timeout=0.1) as gate:
        status, told = await gate.ask()
        assert status == 200 and told.startswith(TOKEN) and b"backend_failed" in told
        ends = [await gate.ask(stream=False) for _ in range(4)]
        assert {status for status, _ in ends} == {200} and len(faulty.heads) > 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("stalls", [True, False])
async def test_a_backend_that_breaks_off_its_answers_rests(stalls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.gateway.health.REST", 0.5)
    faulty, good = Faulty(BEGUN), Hostile()
    faulty.stalls = stalls
    async with gateway(faulty, good, idle_timeout=0.05, slots=1) as gate:
        ends: Counter[Any] = Counter()
        while ends.total() - ends[200] < EJECTED:
            ends += await outcomes(gate, 8)
        assert (await outcomes(gate, 8))[200] == 8 and len(faulty.heads) == EJECTED
        tried, faulty.stalls, faulty.kind = len(faulty.heads), False, good.kind
        while len(faulty.heads) < tried + 3:  # it is tried again
            assert (await outcomes(gate, 8)).keys() == {200}


BROKEN: dict[str, tuple[bytes, dict[str, Any]]] = {
    "a stream": (answer(TOKEN + b"x").removesuffix(b"x"), {}),
    "a whole answer": (plain(b'{"id": "x", "choices": []}').removesuffix(b"]}"), {"stream": False, "x": 1}),
    "an error event": (answer(TOKEN + b'data: {"error": {"message": "x"}}\n\n'), {}),
    "no stream": (failing(b"500 No"), {"stream_options": {"include_progress": True}}),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_failure_behind_the_first_byte_is_logged(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    """It was a success there, and behind a part of a whole answer came the head of another."""
    caplog.set_level(logging.INFO, "server.http.service")
    kind, fields = BROKEN[broken]
    async with gateway(Hostile(kind)) as gate:
        try:
            assert (await gate.ask(**fields))[0] == 200 and broken != "a whole answer"
        except aiohttp.ClientPayloadError:
            assert broken == "a whole answer"
        (logged,) = (one for one in caplog.records if one.name == "server.http.service")
        assert (fields_of(logged)["status"], fields_of(logged)["error"]) == ("200", "backend_failed")
        assert logged.getMessage().endswith(" backend_failed")
        assert [one["state"] for one in (await gate.get("/v1/requests"))["data"]] == ["failed"]
        assert b'request_failure_total{kind="error"' in await gate.read("/metrics")


@pytest.mark.parametrize("stream", [True, False])
async def test_clients_that_leave_are_not_their_backends_fault(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = web.StreamResponse.prepare

    async def leave(response: web.StreamResponse, request: web.BaseRequest) -> Any:
        if request.headers.get("x-leaves") and request.transport is not None:
            request.transport.abort()
        return await prepare(response, request)

    monkeypatch.setattr(web.StreamResponse, "prepare", leave)
    only = Hostile()
    async with gateway(only) as gate:
        for _ in range(2 * EJECTED):
            with pytest.raises(aiohttp.ClientError):
                await gate.client.post("/v1/chat/completions", json=chat(stream=stream), headers={"x-leaves": "1"})
        assert (gate.port.health.breaks, gate.port.fault) == (0, None)
        assert (await gate.ask())[0] == 200 and len(only.heads) == 2 * EJECTED + 1


BELIEVED = [
    *((b"503", b"theirs", RETRIES + 1), (b"502", b"theirs", RETRIES + 1), (b"429", b"theirs", 1)),
    *((b"500", b"theirs", 1), (b"400", b"theirs", 1), (b"503", b"model_not_fetched", 1)),
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("status", "code", "asked"), BELIEVED)
async def test_an_only_backend_is_asked_again_then_believed(status: bytes, code: bytes, asked: int) -> None:
    body = b'{"error": "%b"}' % code
    only = Hostile(answer(body, b"Retry-After: 7", status=status + b" No", kind=b"application/json"))
    async with gateway(only) as gate:
        gate.port.health.tried = True  # as one that rested, before the others broke off
        told = await gate.post("/v1/chat/completions", chat())
        assert (told.status, told.headers["Retry-After"], told.body) == (int(status), "7", body)
        assert len(only.heads) == asked
        only.kind = GOOD
        assert await gate.ask() == (200, EVENTS)


# path, fields of the body, flags, what the backend does -> whether the call goes to the other one
AGAIN: list[tuple[str, dict[str, Any], dict[str, Any], bytes, bool]] = [
    ("/v1/responses", {}, {}, b"", False),
    ("/v1/responses", {}, {}, failing(b"502 No"), False),
    ("/v1/responses", {}, {}, failing(b"503 No"), True),
    ("/v1/responses", {}, {}, failing(b"429 No"), True),
    ("/v1/responses", {"store": False}, {}, b"", True),
    ("/v1/responses", {"store": 0}, {}, b"", False),
    ("/v1/chat/completions", {}, {"no_retry": True}, b"", False),
    ("/v1/chat/completions", {}, {"no_retry": True}, failing(b"503 No"), False),
    ("/v1/messages", {}, {}, b"", True),
    ("/v1/embeddings", {}, {}, failing(b"503 No"), True),
    ("/v1/embeddings", {}, {}, b"", True),
    ("/v1/files", {}, {}, b"", False),
    ("/v1/files", {}, {}, failing(b"504 No"), False),
    ("/v1/files", {}, {}, failing(b"503 No"), True),
    ("/v1/batches", {}, {}, b"", False),
    ("/v1/batches", {}, {"no_retry": True}, failing(b"503 No"), False),
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("path", "fields", "flags", "kind", "again"), AGAIN)
async def test_a_call_of_which_something_may_be_kept_is_sent_once(
    path: str, fields: dict[str, Any], flags: dict[str, Any], kind: bytes, again: bool
) -> None:
    faulty, good = Hostile(kind), Hostile()
    async with gateway(faulty, good, **flags) as gate:
        told = await gate.post(path, {"input": "x", "stream": True, **fields})
        assert (told.status == 200) is again
        assert (len(faulty.heads), len(good.heads)) == (1, int(again))


def test_a_rest_grows_is_bounded_and_ends_with_a_good_answer() -> None:
    health = Health()

    def rests(after: str = "") -> float:
        health.rest(after)
        return health.until - time.monotonic()

    assert [round(rests()) for _ in range(6)] == [1, 2, 4, 8, 16, 30]
    assert rests("9" * 400) <= LONGEST
    assert [(health.note(status), health.tried) for status in (503, 404)] == [(True, True), (False, False)]
    assert 0.9 < rests() < 1.1
    assert 4.9 < (health.note(200), rests("5"))[1] < 5.1
    health.note_end(broken=True)
    assert not health.note(200) and 1.9 < rests() < 2.1  # until an answer is whole
    assert not health.note_end(broken=False)
    for strange in ("-1", "1.5", "²", "soon", ""):
        assert not health.note(200) and rests(strange) < 1.1


async def test_a_backend_that_rested_gets_one_call_until_it_answers() -> None:
    health = Health(tried=True)
    async with gateway(Backend(), slots=4) as gate:
        assert gate.worker.info.max_rows == 4
        gate.port.health = health
        assert gate.worker.info.max_rows == 1
        health.note(200)
        assert gate.worker.info.max_rows == 4


async def test_a_stopped_process_loses_its_calls_without_a_byte_to_another() -> None:
    with ExitStack() as stack:
        one, behind = (stack.enter_context(processes.backend(4, 2.0)) for _ in range(2))
        flags = ("--first-byte-timeout", "0.5")
        before = stack.enter_context(processes.gateway(one.url, behind.url, flags=flags))
        ends: Counter[int] = Counter()

        async def ask() -> None:
            url = f"{before.url}/v1/chat/completions"
            async with aiohttp.request("POST", url, json=chat(max_tokens=5)) as told:
                ends[(await told.read()).count(b" word")] += 1

        await asyncio.gather(*(ask() for _ in range(20)))
        behind.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.gather(*(ask() for _ in range(20)))
        finally:
            behind.process.send_signal(signal.SIGCONT)
        assert ends == {5: 40}


async def test_a_silent_backend_is_found_without_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("probe.PERIOD", 0.01), ("backend.SILENT", 0.05)):
        monkeypatch.setattr(f"server.gateway.{name}", seconds)
    monkeypatch.setattr("server.gateway.probe.PATIENCE", aiohttp.ClientTimeout(0.1))
    silent, good = Faulty(b""), Hostile()
    async with gateway(silent, good) as gate:
        silent.stalls = True
        (asked,) = gate.begin(1)
        await asyncio.wait([asked], timeout=0.3)
        assert silent.heads and not asked.done()  # its models are there: it is slow, not gone
        silent.gone = True
        assert await asked == (200, EVENTS)


SLIPS: dict[str, tuple[bytes, str]] = {
    "no /v1": (plain(b'{"data": [{"id": "m"}]}'), "has its API at"),
    "no API": (answer(b"", status=b"404 Not Found"), "is this an API's URL"),
    "a wrong key": (answer(b"", status=b"401 No"), "its key right"),
}


@pytest.mark.parametrize("slip", SLIPS)
async def test_slips_of_an_operator_are_said_at_the_start(slip: str, caplog: pytest.LogCaptureFixture) -> None:
    page, said = SLIPS[slip]
    behind = Hostile(pages={"/v1/models": page, "/models": answer(b"", status=b"404 Not Found")})
    async with behind.listening() as url, gateway(url.removesuffix("/v1") if slip == "no /v1" else url) as gate:
        assert await gate.ask() == (200, EVENTS) and behind.heads[0].startswith(b"POST /v1/chat/completions")
    assert [said in one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == [True]


@pytest.mark.parametrize("path", ["/chat/completions", "/audio/speech", None])
async def test_without_models_a_backend_is_ready_by_a_call(path: str | None, caplog: pytest.LogCaptureFixture) -> None:
    missing = answer(b"", b"Connection: close", status=b"404 Not Found")
    refused = {} if path is None else {f"/v2{path}": answer(b"{}", status=b"400 No")}
    behind, good = Hostile(missing, pages=refused), Hostile()
    async with behind.listening() as url, gateway(url.replace("/v1", "/v2")) as gate:
        assert (await gate.call("GET", "/health/ready")).status == (503 if path is None else 200)
        said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        assert ["--backend wants the URL" in one for one in said] == [path is None]
    if path is None:
        async with behind.listening() as url, gateway(url.replace("/v1", "/v2"), good) as gate:
            assert [await gate.ask() for _ in range(4)] == [(200, EVENTS)] * 4


async def test_a_dead_port_and_different_models_are_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    one, other = (Hostile(pages={"/v1/models": plain(b'{"data": [{"id": "%b"}]}' % name)}) for name in (b"a", b"b"))
    async with gateway(one, other, "http://127.0.0.1:9/v1"):
        said = " ".join(record.getMessage() for record in caplog.records)
        assert "different models" in said and "/v1/models: cannot connect to 127.0.0.1:9: Connection refused" in said


FAILED = b'lengthwise:request_failure_total{kind="executor",model_name="127.0.0.1:9/v1"} 1.0'


async def test_backends_that_never_answered_end_a_call_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.gateway.sending.FIRST_ANSWER", 0.05)
    async with gateway("http://127.0.0.1:9/v1") as gate:
        status, told = await gate.ask()
        assert status == 503 and b"no backend answers" in told and b"127.0.0.1" not in told
        failures = [line for line in (await gate.read("/metrics")).splitlines() if b"failure_total{" in line]
        assert [one for one in failures if not one.endswith(b" 0.0")] == [FAILED]
        assert (await gate.call("GET", "/v1/models")).status == 503
        for path, fields in (("/v1/estimate", {}), ("/v1/chat/completions", {"promise": {"within_ms": 9000}})):
            async with gate.client.post(path, json=chat(**fields)) as told_at_once:
                assert (told_at_once.status, (await told_at_once.json())["error"]["code"]) == (503, "no_executor")
        assert "no backend answers" in (await gate.get("/health/ready"))["error"]["message"]
        said = "Lengthwise not ready until a backend answers: listens on http://a (127.0.0.1:9/v1, 1 backend, 1 not "
        assert summarize(gate.service, "http://a", 1.0).startswith(said)


@pytest.mark.usefixtures("quick")
async def test_a_backend_that_is_gone_for_long_ends_calls_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.gateway.sending.FIRST_ANSWER", 0.2)
    only = Hostile()
    async with AsyncExitStack() as life, gateway(await life.enter_async_context(only.listening())) as gate:
        assert await gate.ask() == (200, EVENTS)
        await life.aclose()
        ends = await asyncio.gather(*(gate.ask(stream=stream) for stream in (True, False)))
        for status, told in ends:
            assert status == 503 and b"no backend answers" in told
        assert (await gate.get("/health/live"))["status"] == "ok"
        assert not gate.service.dispatcher.waiting and not gate.worker.requests


async def test_a_gateway_that_waits_starts_when_its_backend_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.gateway.probe.PERIOD", 0.01)
    behind = Hostile(pages={"/v1/models": answer(b"", status=b"503 Loading")})

    async def start(url: str) -> tuple[int, bytes]:
        async with gateway(url, wait=True) as gate:
            return await gate.ask()

    async with behind.listening() as url:
        started = asyncio.ensure_future(start(url))
        await asyncio.wait([started], timeout=0.1)
        assert not started.done()
        behind.pages.clear()
        assert await started == (200, EVENTS)


async def test_an_estimate_comes_from_the_gateway_itself() -> None:
    body = {"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 7}
    async with crowded(2) as (behind, gate, _):
        for given in (body, {"prompt": "x" * 440}, {"input": "x" * 440}):
            told = await gate.post("/v1/estimate", given)
            assert told.status == 200 and 100 < told.json["prompt_tokens"] < 120 and told.json["place"] == 2
        refused: tuple[dict[str, Any], ...] = ({}, {"x": 1}, body | {"n": 65})
        assert [(await gate.post("/v1/estimate", given)).status for given in refused] == [400] * 3
        assert len(behind.bodies) == 1


LISTED = [
    (b'"max_model_len": 512', 512),
    (b'"max_model_len": "512"', 4096),
    (b'"max_model_len": 9}, {"id": "n", "max_model_len": 64', 64),
]


@pytest.mark.parametrize(("listed", "most"), LISTED)
async def test_no_answer_is_expected_beyond_a_backends_context(listed: bytes, most: int) -> None:
    behind = Hostile(pages={"/v1/models": plain(b'{"data": [{"id": "m", %b}]}' % listed)})
    async with gateway(behind) as gate:
        asked = {"messages": [{"role": "user", "content": "x"}]}
        assert (await gate.post("/v1/estimate", asked)).json["predicted_tokens"]["median"] == most


BODIES = [
    (b'{"input": 1}', None, b"application/json"),
    (b'{"input": 1}', "application/x-www-form-urlencoded", b"application/json"),
    (b'{"input": 1}', "application/json; charset=utf-8", b"application/json; charset=utf-8"),
    (b"a=b", "application/x-www-form-urlencoded", b"application/x-www-form-urlencoded"),
    (b"--x", "multipart/form-data; boundary=x", b"multipart/form-data; boundary=x"),
]


@pytest.mark.parametrize(("body", "kind", "sent"), BODIES)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/messages/count_tokens"])
async def test_a_body_of_json_is_sent_as_json(path: str, body: bytes, kind: str | None, sent: bytes) -> None:
    behind = Hostile()
    async with gateway(behind) as gate:
        headers, skipped = {} if kind is None else {"Content-Type": kind}, ["Content-Type"] if kind is None else []
        told = await gate.call("POST", path, data=body, headers=headers, skip_auto_headers=skipped)
        assert told.status == (400 if path == "/v1/chat/completions" and body[:1] != b"{" else 200)
    assert [b"\r\ncontent-type: " + sent + b"\r\n" in head.lower() for head in behind.heads] in ([True], [])


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/audio/transcriptions", "/v1/images/edits"])
async def test_calls_without_text_take_slots(path: str) -> None:
    behind = Faulty(HEAD)
    behind.stalls = True
    async with gateway(behind, slots=2) as gate:
        asked = [asyncio.ensure_future(gate.call("POST", path, data=b"binary")) for _ in range(5)]
        await until(lambda: len(behind.heads) == 2 and gate.table.requests_in_line == 3)
        for one in asked:
            one.cancel()
        await until(lambda: gate.under_way == 0)
