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
from server.embeddings import FloatMatrix, TextEmbedder, make_embedding_worker
from server.front_settings import Admission
from server.predictor_cores import PREDICTOR_NICENESS
from server.worker_process import WorkerProcess
from tests.server.api.embeddings import light_embedder
from tests.server.live import Live, bearer, live_server

URL = "/v1/embeddings"
NAME = "letters"
PROCESS = "embedding model"


Make = Callable[..., object]


@asynccontextmanager
async def server(
    make: Make = light_embedder.embed, model: str = NAME, here: Callable[[], bool] = lambda: True, **fields: Any
) -> AsyncIterator[Live]:
    """A server whose embedder `make` makes in a process."""
    process = WorkerProcess(PROCESS, partial(make, model, "cpu"), 200)
    embedder = TextEmbedder(Path(model).name, process, here)
    async with aclosing(embedder), live_server(embedder=embedder, **fields) as live:
        yield live


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    async with server() as live:
        yield live


async def ask(live: Live, given: object, **fields: object) -> Any:
    return await live.obtain(URL, {"input": given, **fields})


def children() -> list[int]:
    return [one.pid for one in multiprocessing.active_children() if one.name == PROCESS and one.pid is not None]


async def test_texts_and_token_ids_have_embeddings_in_their_order(live: Live) -> None:
    assert not children()  # until it is asked
    reply, usage = await ask(live, "hello"), {"prompt_tokens": 5, "total_tokens": 5}
    data = [{"object": "embedding", "index": 0, "embedding": [104.0, 111.0, 5.0]}]
    assert reply == {"object": "list", "data": data, "model": NAME, "usage": usage}
    assert (await ask(live, [104, 101, 108, 108, 111], model=NAME)) == reply
    texts = ["x" * (1 + place % 8) for place in range(100)]
    told = [(place, [120.0, 120.0, len(text)]) for place, text in enumerate(texts)]
    for given in (texts, [[ord(letter) for letter in text] for text in texts]):
        reply = await ask(live, given)
        assert [(one["index"], one["embedding"]) for one in reply["data"]] == told
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
        assert await live.refused(URL, body, param=param, said=told), case
    await ask(live, "fine")


async def test_another_models_name_is_a_404_and_so_is_a_server_that_embeds_nothing(live: Live) -> None:
    other = {"input": "a", "model": "text-embedding-3-small"}
    await live.refused(URL, other, 404, code="model_not_found", said=NAME)
    async with live_server() as none:
        await none.refused(URL, {"input": "a"}, 404, code="no_embeddings")


async def test_a_request_has_so_many_tokens_and_no_more(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.api.embeddings.MOST_TOKENS", 10)
    await ask(live, ["x" * 5, "x" * 5])
    told = "input: has 11 tokens, and a request may have 10"
    await live.refused(URL, {"input": ["x" * 5, "x" * 6]}, code="too_many_tokens", said=told)


async def test_too_much_at_a_time_is_a_429(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_LETTERS", 8)
    await ask(live, ["x" * 8] * 3)  # a call by itself
    calls = [live.post(URL, {"input": "x" * 5}) for _ in range(4)]
    statuses = [status for status, _ in await asyncio.gather(*calls)]
    assert 200 in statuses and set(statuses) <= {200, 429}
    await ask(live, "fine")


async def test_a_process_that_fails_or_is_killed_is_a_503_and_then_there_is_another(live: Live) -> None:
    await live.refused(URL, {"input": "c"}, 503, code="embedder_failed")
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    await live.refused(URL, {"input": "a"}, 503, code="embedder_failed")
    await ask(live, "fine")
    assert (await live.chat())["choices"]


async def test_a_network_that_cannot_be_loaded_is_told_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with server(light_embedder.fail) as live:
        assert NAME not in (await live.refused(URL, {"input": "a"}, 503))["message"]
    assert "letters is no sentence embedder" in caplog.text


async def test_keys_and_quotas_count_and_the_end_turns_calls_away() -> None:
    async with server(keys=["mine", "other"], admission=Admission(tokens_per_minute=5)) as live:
        await live.refused(URL, {"input": "a"}, 401)
        statuses = [(await live.post(URL, {"input": "x" * 5}, **bearer(key)))[0] for key in ("mine", "mine", "other")]
        assert statuses == [200, 429, 200]
        live.app[LIFE].draining = True
        await live.refused(URL, {"input": "a"}, 503, **bearer("other"))


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
    async with server(here=lambda: bool(here)) as live:
        command = f"lengthwise models pull {NAME}"
        await live.refused(URL, {"input": "hello"}, 503, code="model_not_fetched", said=command)
        assert not children()
        here.append(True)
        await ask(live, "hello")


async def test_the_official_client_embeds(live: Live) -> None:
    """It asks for base64 by itself."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        reply = await client.embeddings.create(input=["hello", "you"], model=NAME)
        assert [one.embedding for one in reply.data] == [[104.0, 111.0, 5.0], [121.0, 117.0, 3.0]]
        assert reply.usage.total_tokens == 8


async def test_a_real_network_works_in_the_process_and_gives_way(embedder: Path) -> None:
    network = Embedder.load(embedder, max_tokens=1000)
    texts = ["a b c", "d", "e f g h i j k l"]
    async with server(make_embedding_worker, str(embedder)) as live:

        async def vectors(given: object, **fields: object) -> FloatMatrix:
            return np.array([one["embedding"] for one in (await ask(live, given, **fields))["data"]])

        found, ids = await vectors(texts), network.tokenize(texts)
        assert found == pytest.approx(network.encode(texts), abs=1e-5)
        assert (await ask(live, texts))["usage"]["total_tokens"] == sum(map(len, ids))
        assert await vectors(ids) == pytest.approx(found, abs=1e-6)
        short = found[:, :4] / np.linalg.norm(found[:, :4], axis=1, keepdims=True)
        assert await vectors(texts, dimensions=4) == pytest.approx(short, abs=1e-5)
        own, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, *children()))
        assert its == min(19, own + PREDICTOR_NICENESS)
        await live.refused(URL, {"input": "a " * 31})
    assert not children()


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
