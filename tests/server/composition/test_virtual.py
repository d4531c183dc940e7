"""A whole server on a virtual device: every reply says that its text is filler, and counts are what was asked for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from server.config import ConfigError, load_config
from tests.live_server import serve_here

NAME = "virtual:h100-8b"


@pytest.fixture(scope="module")
def url(tiny_folder: Path) -> Iterator[str]:
    with serve_here(tiny_folder, "--device", NAME) as url:
        yield url


def post(url: str, path: str, body: dict[str, object]) -> bytes:
    with urlopen(Request(f"{url}{path}", json.dumps(body).encode()), timeout=30) as response:
        return bytes(response.read())


CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def test_its_first_call_is_promised_by_the_presets_prices(url: str) -> None:
    post(url, CHAT, {"messages": MESSAGES, "max_tokens": 5, "promise": {"within_ms": 60_000}})


CALLS = [
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 50}),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 50}),
    ("/v1/messages", {"model": NAME, "messages": MESSAGES, "max_tokens": 50}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 50}),
]


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_every_reply_says_that_it_is_filler(url: str, path: str, body: dict[str, object]) -> None:
    whole: Any = json.loads(post(url, path, body))
    assert whole["model"] == NAME and f"{NAME} takes time and computes " in json.dumps(whole)
    usage = whole["usage"]
    assert 50 in (usage.get("completion_tokens"), usage.get("output_tokens"))
    if "choices" in whole:
        assert whole["system_fingerprint"] == NAME


def test_every_chunk_says_so_too_and_counts_are_as_asked(url: str) -> None:
    body = {"messages": MESSAGES, "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
    *lines, end = post(url, CHAT, body).decode().split("\n\n")[:-1]
    *chunks, last = (json.loads(line.removeprefix("data: ")) for line in lines)
    assert end == "data: [DONE]"
    assert {(one["model"], one["system_fingerprint"]) for one in (*chunks, last)} == {(NAME, NAME)}
    said = "".join(one["choices"][0]["delta"]["content"] for one in chunks)
    assert said and f"{NAME} takes time and computes nothing: this text".startswith(said)
    assert last["usage"]["completion_tokens"] == 20


def test_what_only_a_network_computes_is_refused(url: str) -> None:
    with pytest.raises(HTTPError) as refused:
        post(url, CHAT, {"messages": MESSAGES, "max_tokens": 5, "logprobs": True})
    assert refused.value.code == 400 and b"no log-probabilities" in refused.value.read()


def test_a_journal_that_is_not_written_is_said_to_be_none(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_here(tiny_folder, "--device", NAME, "--journal", str(tmp_path / "journal")) as url:
        post(url, "/v1/completions", {"prompt": "Hi", "max_tokens": 2})
    assert "--journal is not written" in caplog.text and not (tmp_path / "journal").exists()


@pytest.mark.parametrize("device", ["virtual", "virtual:", "virtual:none"])
def test_an_unknown_preset_names_those_that_there_are(device: str) -> None:
    with pytest.raises(ConfigError, match="virtual:a100-8b, virtual:h100-8b"):
        load_config({}, {"LENGTHWISE_DEVICE": device}, None)
    with pytest.raises(ConfigError, match="none of auto, cpu, cuda, virtual:PRESET"):
        load_config({}, {"LENGTHWISE_DEVICE": "tpu"}, None)
