"""/v1/embeddings over loopback, by a process that embeds letters, and by a real one."""

import asyncio
import base64
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import server.embeddings as waiting
from models.catalog.catalog import DEFAULT_EMBEDDER, Catalog
from models.embedder import Embedder
from server.api.health import LIFE
from server.embeddings import TextEmbedder, make_embedding_worker
from server.front_settings import Admission
from server.predictor_cores import PREDICTOR_NICENESS
from server.worker_process import WorkerProcess
from tests.server.api.embeddings import light_embedder
from tests.server.live import Live, bearer, live_server

URL = "/v1/embeddings"
NAME = "letters"
PROCESS = "embedding model"


@asynccontextmanager
async def server(
    make: Callable[..., object] = light_embedder.embed, model: str = NAME, **fields: Any
) -> AsyncIterator[Live]:
    """A server whose embedder `make` makes in a process."""
    process = WorkerProcess(PROCESS, partial(make, model, "cpu"), 200)
    async with (
        aclosing(TextEmbedder(Path(model).name, process)) as embedder,
        live_server(embedder=embedder, **fields) as live,
    ):
        yield live


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    async with server() as live:
        yield live


async def ask(live: Live, given: object, **fields: object) -> Any:
    return await live.obtain(URL, {"input": given, **fields})


def child(name: str) -> int:
    (found,) = (one for one in multiprocessing.active_children() if one.name == name)
    assert found.pid is not None
    return found.pid


async def test_texts_and_token_ids_have_embeddings_in_their_order(live: Live) -> None:
    assert not [one for one in multiprocessing.active_children() if one.name == PROCESS]  # until it is asked
    reply = await ask(live, "hello")
    assert reply == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [104.0, 111.0, 5.0]}],
        "model": NAME,
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    assert (await ask(live, [104, 101, 108, 108, 111], model=NAME)) == reply
    texts = ["x" * (1 + place % 8) for place in range(100)]
    for given in (texts, [[ord(letter) for letter in text] for text in texts]):
        reply = await ask(live, given)
        assert [one["embedding"] for one in reply["data"]] == [[120.0, 120.0, len(text)] for text in texts]
        assert [one["index"] for one in reply["data"]] == [*range(100)]
        assert reply["usage"]["total_tokens"] == sum(map(len, texts))


async def test_base64_holds_the_same_numbers_and_dimensions_fewer_of_them(live: Live) -> None:
    (data,) = (await ask(live, "hello", encoding_format="base64"))["data"]
    assert np.frombuffer(base64.b64decode(data["embedding"]), "<f4").tolist() == [104.0, 111.0, 5.0]
    (data,) = (await ask(live, "hello", dimensions=2))["data"]
    assert data["embedding"] == [104.0, 111.0]


CASES: dict[str, tuple[object, str | None, str]] = {
    "nothing": ({}, "input", "this path wants `input`"),
    "an empty text": ({"input": ""}, "input", "length >= 1"),
    "an empty list": ({"input": []}, "input", "length >= 1"),
    "an empty text among others": ({"input": ["a", ""]}, "input", "input[1]: must not be empty"),
    "two kinds": ({"input": ["a", 1]}, "input", "must be a string, token ids, or a list of one of these kinds"),
    "a negative id": ({"input": [-1]}, "input", "input: token ids of letters go from 0 to 127"),
    "no token": ({"input": [[1], [128]]}, "input", "input[1]: token ids of letters go from 0 to 127"),
    "a long text": ({"input": "x" * 9}, "input", "input: has 9 tokens, but letters reads 8; shorten it"),
    "a long text in a later piece": ({"input": ["x"] * 40 + ["x" * 9]}, "input", "input[40]: has 9 tokens"),
    "too many": ({"input": ["x"] * 2049}, "input", "at most 2048 inputs fit one request"),
    "no dimension": ({"input": "a", "dimensions": 0}, "dimensions", ">= 1"),
    "too many dimensions": ({"input": "a", "dimensions": 4}, "dimensions", "dimensions: letters has 3; ask for fewer"),
    "another format": ({"input": "a", "encoding_format": "hex"}, "encoding_format", "Invalid enum value"),
}


async def test_what_cannot_be_embedded_is_a_400_that_says_what_to_change(live: Live) -> None:
    for case, (body, param, told) in CASES.items():
        status, reply = await live.post(URL, body)
        assert status == 400, (case, reply)
        assert reply["error"]["param"] == param and told in reply["error"]["message"], (case, reply)
    await ask(live, "fine")


async def test_another_models_name_is_a_404_and_so_is_a_server_that_embeds_nothing(live: Live) -> None:
    status, reply = await live.post(URL, {"input": "a", "model": "text-embedding-3-small"})
    assert (status, reply["error"]["code"]) == (404, "model_not_found") and NAME in reply["error"]["message"]
    async with live_server() as none:
        status, reply = await none.post(URL, {"input": "a"})
        assert (status, reply["error"]["code"]) == (404, "no_embeddings")


async def test_a_request_has_so_many_tokens_and_no_more(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.api.embeddings.MOST_TOKENS", 10)
    await ask(live, ["x" * 5, "x" * 5])
    status, reply = await live.post(URL, {"input": ["x" * 5, "x" * 6]})
    assert (status, reply["error"]["code"]) == (400, "too_many_tokens")
    assert reply["error"]["message"].startswith("input: has 11 tokens, and a request may have 10")


async def test_too_much_at_a_time_is_a_429(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_LETTERS", 8)
    await ask(live, ["x" * 8] * 3)  # a call by itself
    calls = [live.post(URL, {"input": "x" * 5}) for _ in range(4)]
    statuses = [status for status, _ in await asyncio.gather(*calls)]
    assert 200 in statuses and set(statuses) <= {200, 429}
    await ask(live, "fine")


async def test_a_process_that_fails_or_is_killed_is_a_503_and_then_there_is_another(live: Live) -> None:
    status, reply = await live.post(URL, {"input": "c"})
    assert (status, reply["error"]["code"]) == (503, "embedder_failed")
    os.kill(child(PROCESS), signal.SIGKILL)
    status, reply = await live.post(URL, {"input": "a"})
    assert (status, reply["error"]["code"]) == (503, "embedder_failed")
    await ask(live, "fine")
    assert (await live.chat())["choices"]


async def test_a_network_that_cannot_be_loaded_is_told_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with server(light_embedder.fail) as live:
        status, reply = await live.post(URL, {"input": "a"})
    assert status == 503 and NAME not in reply["error"]["message"]
    assert "letters is no sentence embedder" in caplog.text


async def test_keys_and_quotas_count_and_the_end_turns_calls_away() -> None:
    async with server(keys=["mine", "other"], admission=Admission(tokens_per_minute=5)) as live:
        assert (await live.post(URL, {"input": "a"}))[0] == 401
        statuses = [(await live.post(URL, {"input": "x" * 5}, **bearer(key)))[0] for key in ("mine", "mine", "other")]
        assert statuses == [200, 429, 200]
    async with server() as live:
        live.app[LIFE].draining = True
        assert (await live.post(URL, {"input": "a"}))[0] == 503


async def test_a_batch_embeds_too(tmp_path: Path) -> None:
    from server.http.service import FilesPlace
    from tests.server.api.batches.served import line, results, run

    lines = line("a", URL, input="hello") + line("b", URL, input="x" * 9)
    async with server(files=FilesPlace(tmp_path, 10**6)) as live:
        batch = await run(live, lines, URL)
        fine, wrong = [await results(live, batch[name]) for name in ("output_file_id", "error_file_id")]
    assert fine["a"]["response"]["body"]["data"][0]["embedding"] == [104.0, 111.0, 5.0]
    assert wrong["b"]["response"]["status_code"] == 400


async def test_a_model_that_is_not_here_is_a_503_with_the_command_and_never_fetched_inside_a_call() -> None:
    """The first call took 21 s to download it."""
    here: list[bool] = []
    process = WorkerProcess(PROCESS, partial(light_embedder.embed, NAME, "cpu"))
    async with (
        aclosing(TextEmbedder(NAME, process, lambda: bool(here))) as embedder,
        live_server(embedder=embedder) as live,
    ):
        status, reply = await live.post(URL, {"input": "hello"})
        assert (status, reply["error"]["code"]) == (503, "model_not_fetched")
        assert f"lengthwise models pull {NAME}" in reply["error"]["message"]
        assert not [one for one in multiprocessing.active_children() if one.name == PROCESS]
        here.append(True)
        await ask(live, "hello")


async def test_the_official_client_embeds(live: Live) -> None:
    """It asks for base64 by itself."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        reply = await client.embeddings.create(input=["hello", "you"], model=NAME)
        assert [one.embedding for one in reply.data] == [[104.0, 111.0, 5.0], [121.0, 117.0, 3.0]]
        assert reply.usage.total_tokens == 8


TEXTS = ["a b c", "d", "e f g h i j k l"]


async def test_a_real_network_works_in_the_process_and_gives_way(embedder: Path) -> None:
    network = Embedder.load(embedder, max_tokens=1000)
    async with server(make_embedding_worker, str(embedder)) as live:
        reply = await ask(live, TEXTS)
        found = np.array([one["embedding"] for one in reply["data"]])
        assert found == pytest.approx(network.encode(TEXTS), abs=1e-5)
        ids = network.tokenize(TEXTS)
        assert reply["usage"]["total_tokens"] == sum(map(len, ids))
        assert np.array([one["embedding"] for one in (await ask(live, ids))["data"]]) == pytest.approx(found, abs=1e-6)
        short = np.array([one["embedding"] for one in (await ask(live, TEXTS, dimensions=4))["data"]])
        assert short == pytest.approx(found[:, :4] / np.linalg.norm(found[:, :4], axis=1, keepdims=True), abs=1e-5)
        own, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, child(PROCESS)))
        assert its == min(19, own + PREDICTOR_NICENESS)
        assert (await live.post(URL, {"input": "a " * 31}))[0] == 400
    assert not [one for one in multiprocessing.active_children() if one.name == PROCESS]


@pytest.mark.slow
async def test_the_packaged_network_says_what_sentence_transformers_says() -> None:
    from sentence_transformers import SentenceTransformer

    (status,) = (one for one in Catalog().known() if one.name == DEFAULT_EMBEDDER)
    if not status.cached:
        pytest.skip(f"{DEFAULT_EMBEDDER} is not here: it is fetched when it is first asked")
    texts = ["The weather in Graz", "Le temps à Vienne", "word " * 200]
    network = SentenceTransformer(str(status.folder), device="cpu")
    wanted = network.encode(texts, truncate_dim=64, normalize_embeddings=True)
    async with server(make_embedding_worker, DEFAULT_EMBEDDER) as live:
        reply = await ask(live, texts, dimensions=64)
        assert (await live.post(URL, {"input": "word " * 255}))[0] == 400
    assert np.array([one["embedding"] for one in reply["data"]]) == pytest.approx(wanted, abs=1e-5)
