"""Files and batches over loopback: what goes in, what comes out, and what a server that ended leaves to the next."""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import orjson
import pytest

from engine.messages import RowSpec, RowUpdate
from scheduler.request import BACKGROUND, Failure, Refused
from server.access import ACCESS, ALL
from server.front_settings import Admission
from tests.server.api.batches.served import begin, body, form, line, replies, results, run, server, until, upload
from tests.server.fakes import ANSWER, answer, say
from tests.server.live import CHAT, Live, bearer, chat_body, live_server


async def test_each_line_gets_its_answer_or_its_error(live: Live) -> None:
    late = line("e", deadline_ms=5000) + line("f", promise={"within_ms": 5000})  # would count for nothing
    lines = line("a") + b"\n" + line("b", n=2) + line("c", temperature=9) + line("d", stream=True) + late
    batch = await run(live, lines)
    assert batch["request_counts"] == {"total": 6, "completed": 2, "failed": 4}
    fine, wrong = await results(live, batch["output_file_id"]), await results(live, batch["error_file_id"])
    for found, status in ((fine, 200), (wrong, 400)):
        assert {(one["response"]["status_code"], one["error"]) for one in found.values()} == {(status, None)}
    texts = {name: [one["message"]["content"] for one in reply["choices"]] for name, reply in replies(fine).items()}
    assert texts == {"a": [ANSWER], "b": [ANSWER] * 2}
    params = {name: reply["error"]["param"] for name, reply in replies(wrong).items()}
    assert params == {"c": "temperature", "d": "stream", "e": "deadline_ms", "f": "promise"}
    assert batch["created_at"] <= batch["in_progress_at"] <= batch["completed_at"] < batch["expires_at"]


async def test_no_line_of_results_ends_within_it(live: Live) -> None:
    """Clients that read by str.splitlines broke on lines with U+2028 in an answer, or in a name of their own."""
    live.dispatcher.script = partial(say, "x\u2028y\x85z")
    batch = await run(live, line("a\u2029b"))
    raw = (await live.get(f"/v1/files/{batch['output_file_id']}/content")).body.decode()
    (one,) = map(orjson.loads, raw.splitlines())
    assert one["custom_id"] == "a\u2029b"
    assert one["response"]["body"]["choices"][0]["message"]["content"] == "x\u2028y\x85z"


async def test_lines_go_below_all_others_in_their_order_twice_as_many_as_slots(live: Live) -> None:
    live.dispatcher.pause = 1
    lengths = {str(place): 10 + place * 7 % 101 for place in range(200)}
    name = await begin(live, b"".join(line(one, max_tokens=most) for one, most in lengths.items()))
    await live.dispatcher.until(lambda: len(live.dispatcher.submitted) == 2 * live.dispatcher.executor.info.max_rows)
    assert {request.priority for request in live.dispatcher.submitted} == {BACKGROUND}
    live.dispatcher.release()
    await until(live, name, "completed")
    asked = [request.sampling.max_tokens for request in live.dispatcher.submitted]
    assert sorted(asked) == sorted(lengths.values())


async def test_lines_that_wait_turn_no_other_request_away(tmp_path: Path) -> None:
    """Lines in the queue filled it, so that others were refused with 429."""
    async with server(tmp_path, max_num_queued_reqs=0) as live:
        live.dispatcher.pause = 1
        first = await live.begin(CHAT, chat_body())
        await begin(live, line("a"))
        await live.dispatcher.until(lambda: len(live.dispatcher.submitted) == 2)
        second = await live.begin(CHAT, chat_body())
        live.dispatcher.release()
        assert [status for status, _ in await asyncio.gather(first, second)] == [200, 200]


async def test_a_cancelled_batch_keeps_what_it_has(live: Live) -> None:
    live.dispatcher.script = first_answers("a")
    live.dispatcher.pause = None
    name = await begin(live, line("a", max_tokens=100) + line("b", max_tokens=50))
    await until(live, name, lines=1)
    assert (await live.obtain(f"/v1/batches/{name}/cancel", {}))["status"] == "cancelling"
    batch = await until(live, name, "cancelled")
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 0}
    assert set(await results(live, batch["output_file_id"])) == {"a"}
    assert live.dispatcher.table.requests_running + live.dispatcher.table.requests_waiting == 0
    assert (await live.obtain(f"/v1/batches/{name}/cancel", {}))["status"] == "cancelled"


def first_answers(name: str) -> Any:
    """A script that answers one prompt and lets all others run."""

    def script(row: RowSpec) -> Iterable[RowUpdate]:
        if f"user:{name}\n".encode() in bytes(row.prompt):
            yield from answer(row)
        else:
            while True:
                yield RowUpdate(row.row_id, (1,), "x")

    return script


async def test_the_next_server_asks_only_for_what_has_no_answer(tmp_path: Path) -> None:
    names = [f"line {place}" for place in range(6)]
    async with server(tmp_path) as live:
        live.dispatcher.script = first_answers(names[2])
        batch_id = await begin(live, b"".join(map(line, names)))
        await until(live, batch_id, lines=1)
    (output,) = (path for path in (tmp_path / "files").glob("*.data") if b"chat.completion" in path.read_bytes())
    with output.open("ab") as half:  # as a kill may leave it
        half.write(b'{"id": "x", "custom_id": "line 3", "resp')
    (tmp_path / "files" / "file-rest.data").write_bytes(b"of an upload")
    async with server(tmp_path) as live:
        batch = await until(live, batch_id, "completed")
        assert len(live.dispatcher.submitted) == 5
        assert set(await results(live, batch["output_file_id"])) == set(names)
    async with server(tmp_path) as live:
        assert (await live.get(f"/v1/batches/{batch_id}")).json == batch
    assert not (tmp_path / "files" / "file-rest.data").exists()


async def test_what_the_dispatcher_refuses_for_now_is_asked_again(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.batches.batches.RETRY", 0.0)
    refusal, submit = Refused("no executor is alive", Failure.EXECUTOR), live.dispatcher.submit_all
    monkeypatch.setattr(live.dispatcher, "submit_all", Mock(wraps=submit, side_effect=[refusal, refusal, DEFAULT]))
    assert (await run(live, line("a")))["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


async def test_a_window_that_closes_tells_of_each_line(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.batches.batch.WINDOW", 0)
    live.dispatcher.pause = 0
    batch = await run(live, line("a") + line("b"), end="expired")
    assert batch["request_counts"] == {"total": 2, "completed": 0, "failed": 2}
    wrong = await results(live, batch["error_file_id"])
    assert {one["error"]["code"] for one in wrong.values()} == {"batch_expired"}


INPUTS = {
    "no lines": (b"\n", "empty_file", None),
    "no JSON": (line("a") + b"{\n", "invalid_json_line", 2),
    "deep": (line("a") + b'{"custom_id": "b", "body": ' + b"[" * 100_000 + b"\n", "invalid_json_line", 2),
    "no body": (b'{"custom_id": "a", "url": "/v1/chat/completions"}', "invalid_json_line", 1),
    "a name twice": (line("a") + line("a"), "duplicate_custom_id", 2),
    "another method": (line("a").replace(b"POST", b"GET"), "invalid_method", 1),
    "another path": (line("a", "/v1/completions"), "mismatched_url", 1),
    "bytes": (b"\xff\xfe\n", "invalid_json_line", 1),
}


@pytest.mark.parametrize("case", INPUTS)
async def test_a_bad_input_fails_as_a_whole_and_says_where(live: Live, case: str) -> None:
    content, code, number = INPUTS[case]
    batch = await run(live, content, end="failed")
    (error,) = batch["errors"]["data"]
    assert (error["code"], error["line"]) == (code, number)
    assert not live.dispatcher.submitted


DEEP = b"[" * 5000 + b"]" * 5000
BODIES = (
    *(DEEP, b'{"a":' * 5000 + b"1" + b"}" * 5000, b'{"prompt": "\\ud800"}', b'{"prompt": "\xff"}', b'{"prompt": "\0"}'),
    *(b'{"temperature": NaN}', b'{"prompt": "x", "temperature": 1e999}', b"{}}{}"),
    b'{"prompt": "x", "max_tokens": 1' + b"0" * 400 + b"}",
)


@pytest.mark.parametrize("wrong", BODIES, ids=lambda body: body[:20].decode(errors="replace"))
async def test_a_body_that_cannot_be_read_fails_its_line_alone_as_it_fails_a_call(live: Live, wrong: bytes) -> None:
    """Nested lists and half of a surrogate pair failed the whole batch."""
    url = "/v1/completions"
    odd = b'{"custom_id": "b", "method": "POST", "url": "%b", "body": %b}\r\n' % (url.encode(), wrong)
    good = line("a", url, prompt="x")
    batch = await until(live, await begin(live, good + odd + good.replace(b'"a"', b'"c"'), url), "completed", "failed")
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    (found,) = (await results(live, batch["error_file_id"])).values()
    assert (found["custom_id"], found["response"]["status_code"]) == ("b", 400)
    assert found["response"]["body"] == (await live.post(url, wrong))[1]


async def test_a_line_that_is_nested_too_deep_is_refused_in_the_words_of_a_call(live: Live) -> None:
    """It got the interpreter's words: maximum recursion depth exceeded."""
    content = b'{"custom_id": "a", "url": "/v1/chat/completions", "unknown": %b}\n' % DEEP
    batch = await run(live, content, end="failed")
    assert batch["errors"]["data"][0]["message"] == (await live.refused(CHAT, content))["message"]


async def test_bad_calls_are_refused(live: Live) -> None:
    file = await upload(live, line("a"))
    await live.refused("/v1/batches", body("file-x"), 404, param="input_file_id")
    await live.refused("/v1/batches", body(file["id"], "/v1/moderations"), param="endpoint")
    for name, value in (("completion_window", "1h"), ("metadata", {"a": 1})):
        await live.refused("/v1/batches", body(file["id"]) | {name: value}, param=name)
    for purpose in (None, "fine-tune"):
        await live.refused("/v1/files", form(b"x", purpose), param="purpose")
    for path in ("/v1/files/x", "/v1/files/x/content", "/v1/batches/x", "/v1/files/..%2F..%2Fbatches%2Fx/content"):
        assert (await live.get(path)).status == 404
    for query in ("limit=0", "limit=x", "after=x", "order=x"):
        assert (await live.get(f"/v1/files?{query}")).status == 400
    await live.refused("/v1/files", b"{}")
    await live.refused("/v1/files", b"--y\r\n", content_type="multipart/form-data; boundary=x")


async def test_a_file_that_is_read_cannot_be_deleted(live: Live) -> None:
    live.dispatcher.pause = 0
    batch = await until(live, await begin(live, line("a")), "in_progress")
    reply = await live.ask("DELETE", f"/v1/files/{batch['input_file_id']}")
    assert (reply.status, reply.json["error"]["code"]) == (400, "file_in_use")


async def test_lists_come_in_pages_the_latest_first(live: Live) -> None:
    made = [await begin(live, line(str(place))) for place in range(3)]
    page = (await live.get("/v1/batches?limit=2")).json
    assert [one["id"] for one in page["data"]] == made[:0:-1]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (made[2], made[1], True)
    page = (await live.get(f"/v1/batches?after={made[1]}")).json
    assert ([one["id"] for one in page["data"]], page["has_more"]) == (made[:1], False)
    files = [one["id"] for one in (await live.get("/v1/files?purpose=batch")).json["data"]]
    page = (await live.get(f"/v1/files?purpose=batch&order=asc&after={files[-1]}")).json  # `order` was ignored
    assert len(files) == 3 and [one["id"] for one in page["data"]] == files[1::-1]


async def test_a_key_sees_only_its_own(tmp_path: Path) -> None:
    mine, other = bearer("mine"), bearer("other")
    async with server(tmp_path, keys=["mine", "other"]) as live:
        file = await upload(live, line("a"), **mine)
        batch = await live.obtain("/v1/batches", body(file["id"]), **mine)
        await live.refused("/v1/batches", body(file["id"]), 404, **other)
        for path in (f"/v1/files/{file['id']}/content", f"/v1/batches/{batch['id']}"):
            assert [(await live.get(path, **headers)).status for headers in (other, mine)] == [404, 200]
        assert (await live.get("/v1/batches", **other)).json["data"] == []


async def test_lines_count_in_their_keys_quota_and_leave_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They counted for nothing: a batch let a key have all that its quota kept from it."""
    monkeypatch.setattr("server.batches.batches.RETRY", 0.001)
    async with server(tmp_path, admission=Admission(requests_per_minute=4)) as live:
        name = await begin(live, line("a") + line("b", n=2) + line("c"))
        await until(live, name, lines=2)
        assert [(await live.post(CHAT, chat_body()))[0] for _ in range(3)] == [200, 200, 429]
        assert len(live.dispatcher.submitted) == 5
        monkeypatch.setattr("server.access.WINDOW", 0.0)
        assert (await until(live, name, "completed"))["request_counts"]["completed"] == 3


async def test_lines_spend_tokens(tmp_path: Path) -> None:
    async with server(tmp_path, admission=Admission(tokens_per_minute=10**6)) as live:
        batch = await run(live, line("a") + line("b"))
        told = replies(await results(live, batch["output_file_id"]))
        spent = sum(one["usage"]["total_tokens"] for one in told.values())
        assert spent and live.app[ACCESS].quota._uses[ALL].tokens.total == spent


async def test_a_server_without_a_folder_says_so() -> None:
    async with live_server() as live:
        await live.refused("/v1/batches", body("file-x"), 404, code="no_files")


async def test_the_official_client_runs_a_batch(live: Live) -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        file = await client.files.create(file=("in.jsonl", line("a") + line("b")), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"for": "a test"}
        )
        while batch.status != "completed":
            batch = await client.batches.retrieve(batch.id)
        assert batch.request_counts is not None and batch.request_counts.completed == 2
        assert batch.output_file_id is not None and batch.metadata == {"for": "a test"}
        content = await client.files.content(batch.output_file_id)
        assert len(content.text.splitlines()) == 2
        assert [one.id async for one in client.batches.list()] == [batch.id]
        assert (await client.files.delete(file.id)).deleted
