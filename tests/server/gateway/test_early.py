"""Streams whose clients ask for progress or a promise: what comes before a backend answers, and how errors end them."""

from typing import Any

import orjson
import pytest

from server.api.output.sse import progress_in
from server.gateway.relay import BROKE_OFF
from tests.server.gateway.backends import Backend, chat, crowded, event, gateway, until
from tests.server.gateway.test_hostile import CHAT, DONE, TOKEN, Hostile, answer, plain

HEADER = {"X-Lengthwise-Progress": "1"}
FIELD = {"stream_options": {"include_progress": True}}
WITHIN = {"within_ms": 600_000}


WAITING = [
    (HEADER, {}, True),
    ({}, FIELD, True),
    ({}, {"promise": WITHIN}, False),
    ({"X-Lengthwise-Promise": orjson.dumps(WITHIN).decode()}, {}, False),
]


@pytest.mark.parametrize(
    ("headers", "fields", "comments"),
    WAITING,
    ids=["progress by header", "progress by field", "promise by field", "promise by header"],
)
async def test_a_waiting_client_that_asks_is_told(headers: dict[str, str], fields: Any, comments: bool) -> None:
    async with crowded(1) as (backend, gate, _):
        gate.measure()
        async with gate.client.post(CHAT, json=chat(**fields), headers=headers) as early:
            assert early.status == 200 and early.content_type == "text/event-stream" and len(backend.seen) == 1
            assert early.headers["x-lengthwise-place"] == "1"
            if comments:
                told = progress_in((await early.content.readuntil(b"\n\n")).decode().strip().removeprefix(": "))
                assert told is not None and told.place == 1
            backend.go_on.set()
            tokens = b"".join(event(index) for index in range(5))
            assert (await early.read()).endswith(tokens + b"data: [DONE]\n\n")
        assert b"promise" not in backend.bodies[-1], "strict backends refuse what they do not know"
        assert not {name.lower() for name in backend.seen[-1]} & {"x-lengthwise-progress", "x-lengthwise-promise"}


async def test_a_whole_answers_promise_stays_at_the_gateway_too() -> None:
    backend = Backend(waits=False)
    async with gateway(backend) as gate:
        gate.measure()
        assert (await gate.ask(stream=False, promise=WITHIN))[0] == 200
    assert b'"stream":true' in backend.bodies[0] and not any(b"promise" in body for body in backend.bodies)


async def test_others_get_the_backends_status() -> None:
    async with crowded(1) as (backend, gate, _):
        (waiting,) = gate.begin(1, bad=418)
        await until(lambda: gate.table.requests_waiting == 1)
        backend.go_on.set()
        assert (await waiting)[0] == 418


ERRORS = {
    "OpenAI's": (plain(b'{"error": {"message": "too\\nlong", "code": 7}}'), "too\nlong"),
    "a word": (plain(b'{"error": "too long"}'), "too long"),
    "FastAPI's": (plain(b'{"detail": "too long"}'), "too long"),
    "a page": (plain(b"<h1>too long"), "<h1>too long"),
    "nothing": (plain(b""), "the backend answers 400"),
}


@pytest.mark.parametrize(("path", "event"), [(CHAT, b""), ("/v1/messages", b"event: error\n")])
@pytest.mark.parametrize("error", ERRORS)
async def test_an_error_of_a_backend_is_the_last_event(path: str, event: bytes, error: str) -> None:
    kind, said = ERRORS[error]
    async with gateway(Hostile(kind.replace(b"200 OK", b"400 Bad"))) as gate:
        early = await gate.post(path, chat(), **HEADER)
        head, _, data = early.body.removesuffix(DONE).rpartition(b"data: ")
        told = orjson.loads(data)["error"]
        assert head.strip(b"\n") == event.strip(b"\n") and told["message"] == said
        assert error != "OpenAI's" or told["code"] == 7, "as it came"
        assert gate.under_way == 0


@pytest.mark.parametrize("kind", [plain(b'{"choices": []}'), answer(b"", status=b"204 None")])
async def test_an_answer_that_is_no_stream_is_an_error(kind: bytes) -> None:
    async with gateway(Hostile(kind)) as gate:
        told = (await gate.post(CHAT, chat(), **HEADER)).body
        assert b"without a stream" in told and b"backend_failed" in told


async def test_a_message_that_breaks_off_ends_in_its_dialect() -> None:
    async with gateway(cut_off(TOKEN)) as gate:
        assert b"\n\nevent: error\ndata: " in (await gate.post("/v1/messages", chat())).body


RESPONSES = "/v1/responses"


def sent(kind: str, number: Any, **fields: Any) -> bytes:
    told = orjson.dumps({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), told)


OWN = {"id": "resp_theirs", "model": "their-model", "created_at": 7}
BEGUN = ("response.created", "response.in_progress")
CREATED = [sent(kind, number, response=OWN | {"tools": []}) for number, kind in enumerate(BEGUN)]
DELTAS = [sent("response.output_text.delta", n, item_id="msg_1", delta="x" * 99) for n in range(2, 500)]
ODD = ("x" * 9000, 5, None, "\x00", {"id": "y"})


def cut_off(stream: bytes) -> Hostile:
    """A backend that breaks off behind these bytes."""
    return Hostile(answer(stream + b"x").removesuffix(b"x"))


@pytest.mark.parametrize("headers", [{}, HEADER], ids=["", "early"])
@pytest.mark.parametrize("half", [b"", b'event: response.output_text.delta\ndata: {"type": "re', b"event: x\n"])
async def test_a_response_that_breaks_off_ends_as_its_own(half: bytes, headers: dict[str, str]) -> None:
    """Its last event had another id, no model, and the number 1."""
    stream = b"".join([*CREATED, *DELTAS, half])
    async with gateway(cut_off(stream)) as gate:
        told = (await gate.post(RESPONSES, chat(model="asked"), **headers)).body
    *_, failed = responses(told.removeprefix(stream))
    assert told.startswith(stream) and b"\n\nevent: response.failed\n" in told
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 500)
    error = {"code": "server_error", "message": BROKE_OFF}
    assert failed["response"].items() >= (OWN | {"status": "failed", "error": error}).items()


@pytest.mark.parametrize("odd", ODD)
async def test_what_a_backend_says_of_its_response_is_bounded(odd: Any) -> None:
    first = sent("response.created", odd, response={"id": odd, "model": odd, "created_at": odd})
    async with gateway(cut_off(first + DELTAS[0])) as gate:
        *_, failed = responses((await gate.post(RESPONSES, chat(model="m" * 9000))).body)
    own = failed["response"]
    assert failed["sequence_number"] == 3 and 0 < len(own["id"]) <= 256 and 0 < len(own["model"]) <= 256
    assert type(own["created_at"]) is int


async def test_a_response_that_fails_behind_keep_alives_goes_on_with_their_numbers() -> None:
    """Codex breaks off a stream without an event."""
    async with crowded(1, sse_keep_alive_interval=0.02) as (_, gate, _):
        headers = {**HEADER, "X-Request-Id": "mine"}
        async with gate.client.post(RESPONSES, json=chat(model="asked"), headers=headers) as early:
            frames = [await early.content.readuntil(b"\n\n") for _ in range(3)]
            await gate.post("/v1/requests/mine/cancel")
            events = responses(b"".join(frames) + await early.read())
    assert [event["type"] for event in events[:2]] == [*BEGUN]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert events[-1]["type"] == "response.failed"
    told = [(event["response"]["id"], event["response"]["model"]) for event in events]
    assert {*told} == {(told[0][0], "asked")}


def responses(stream: bytes) -> list[Any]:
    """Events that the gateway itself adds, which have numbers."""
    events = [orjson.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    return [event for event in events if "sequence_number" in event]


@pytest.mark.parametrize(
    ("status", "code"), [(400, "invalid_prompt"), (404, "invalid_prompt"), (429, "rate_limit_exceeded"), (500, None)]
)
async def test_an_error_of_a_response_is_a_failed_response(status: int, code: str | None) -> None:
    """Codex reads no other events, and asks again but after invalid_prompt; OpenAI's own want `created` first."""
    kind, said = ERRORS["OpenAI's"]
    async with gateway(Hostile(kind.replace(b"200 OK", b"%d Bad" % status))) as gate:
        created, failed = responses(stream := (await gate.post(RESPONSES, chat(), **HEADER)).body)
        assert stream.startswith(b"event: response.created\n") and DONE not in stream
        assert created["response"]["status"] == "in_progress" and created["response"]["id"][:5] == "resp_"
        assert failed["type"] == "response.failed"
        assert failed["response"]["error"] == {"code": code or "server_error", "message": said}


async def test_a_message_that_waits_is_kept_alive_by_events() -> None:
    async with (
        crowded(1, sse_keep_alive_interval=0.05) as (_, gate, _),
        gate.client.post("/v1/messages", json=chat(), headers=HEADER) as early,
    ):
        while not (told := await early.content.readuntil(b"\n\n")).startswith(b"event: ping\n"):
            assert told.startswith(b": queued")


async def test_a_call_cancelled_by_its_id_ends_its_stream() -> None:
    async with crowded(1) as (_, gate, _), gate.client.post(CHAT, json=chat(), headers=HEADER) as early:
        name = (await gate.get("/v1/requests"))["data"][0]["id"]
        await gate.post(f"/v1/requests/{name}/cancel")
        assert b"request_cancelled" in await early.read()


async def test_what_cannot_be_read_is_refused_before_the_headers() -> None:
    async with gateway(Backend()) as gate:
        refused = await gate.post(CHAT, chat(), **{"X-Lengthwise-Progress": "yes"})
        assert refused.status == 400 and "must be 0 or 1" in refused.json["error"]["message"]


@pytest.mark.parametrize("tokens", [1, 5])
async def test_backends_whose_answers_come_at_once_are_measured_by_whole_answers(tokens: int) -> None:
    """Their second tokens came with the last, so that no call was ever told an end, and no promise given."""
    async with gateway(Backend(waits=False)) as gate:
        for _ in range(4):
            assert "x-lengthwise-by" not in (await gate.post(CHAT, chat(max_tokens=tokens))).headers
        assert (await gate.ask(promise=WITHIN))[0] == 200
        assert (await gate.ask(promise={"within_ms": 0.001}))[0] == 503


WRONG = [("max_tokens", limit) for limit in (1.5, "many", -2, 0, [5], True)] + [("n", 1000), ("messages", None)]


@pytest.mark.parametrize(("field", "value"), WRONG)
async def test_what_no_backend_takes_is_no_reason_to_refuse_a_promise(field: str, value: Any) -> None:
    async with gateway(Backend(waits=False)) as gate:
        gate.measure()
        wrong = {name: one for name, one in chat(**{field: value}, promise=WITHIN).items() if one is not None}
        told = await gate.post(CHAT, wrong)
        assert (told.status, told.json["error"]["param"]) == (400, field)
        foreseen = await gate.post("/v1/estimate", chat(promise={"within_ms": 0.001}))
        assert foreseen.json["refused"] == "promise_refused"
        foreseen = await gate.post("/v1/estimate", chat(max_tokens=-1, promise={"within_ms": 86_400_000}))
        assert foreseen.status == 200, "no limit, to some backends"
