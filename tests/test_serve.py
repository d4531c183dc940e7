"""A server with a real tokenizer, read over a raw socket: what is on the wire is well-formed and whole."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests import tiny
from tests.live_server import serve_here
from tests.server.live import dechunk, parse_events

SAYING = "世猫😀é م"
"""Characters of one to four bytes, whose tokens are parts of characters."""


@pytest.fixture(scope="module")
def parrot_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tiny.build_parrot(tmp_path_factory.mktemp("models") / "parrot", SAYING)
    with serve_here(folder) as url:
        yield url


def post(url: str, body: dict[str, object]) -> tuple[str, bytes]:
    """Status line and body of an answer to a chat request, chunks joined."""
    data = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, **body}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {len(data)}\r\n"
    head += "Connection: close\r\n\r\n"
    address = urlsplit(url)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port or 80), timeout=60) as connection:
        connection.sendall(head.encode() + data)
        raw = b"".join(iter(lambda: connection.recv(7), b""))  # an odd size, to cut characters apart
    headers, _, rest = raw.partition(b"\r\n\r\n")
    chunked = b"transfer-encoding: chunked" in headers.lower()
    return headers.split(b"\r\n")[0].decode(), b"".join(dechunk(rest)) if chunked else rest


@pytest.mark.parametrize("max_tokens", range(1, 20))
def test_a_stream_joins_to_the_whole_answer_wherever_it_is_cut(parrot_url: str, max_tokens: int) -> None:
    status, whole = post(parrot_url, {"max_tokens": max_tokens})
    assert status.endswith("200 OK")
    message = json.loads(whole)["choices"][0]["message"]["content"]
    status, stream = post(parrot_url, {"max_tokens": max_tokens, "stream": True})
    assert status.endswith("200 OK")
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in parse_events(stream)]
    assert "".join(pieces) == message
    assert (SAYING * 20).startswith(message)


def test_a_cut_off_character_is_no_text_but_its_tokens_are_told(parrot_url: str) -> None:
    """So a client that wants them has the bytes."""
    for max_tokens in range(1, 20):
        _, whole = post(parrot_url, {"max_tokens": max_tokens, "logprobs": True})
        reply = json.loads(whole)
        (choice,) = reply["choices"]
        told = [token["bytes"] for token in choice["logprobs"]["content"]]
        assert len(told) == reply["usage"]["completion_tokens"] == max_tokens
        assert b"".join(map(bytes, told)).decode(errors="ignore") == choice["message"]["content"]


def test_answers_that_repeat_themselves_are_ended_where_that_is_wanted(tmp_path: Path) -> None:
    """Whole and streamed, each of several; not one that has to match a grammar."""
    with serve_here(tiny.build_parrot(tmp_path / "parrot", SAYING), "--stop-repetition") as url:
        _, whole = post(url, {"n": 2, "max_tokens": 400})
        choices = json.loads(whole)["choices"]
        assert [(one["finish_reason"], one["stop_reason"]) for one in choices] == [("stop", "repetition")] * 2
        _, stream = post(url, {"max_tokens": 400, "stream": True})
        (last,) = parse_events(stream)[-1]["choices"]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", "repetition")
        _, held = post(url, {"max_tokens": 300, "structured_outputs": {"regex": f"[{SAYING}]*"}})
        (choice,) = json.loads(held)["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)


def under_way(url: str) -> int:
    """Requests that wait or run."""
    with urlopen(f"{url}/health", timeout=60) as response:
        told: dict[str, int] = json.load(response)
    return told["requests_waiting"] + told["requests_running"]


def state_of(url: str, name: str) -> str:
    """How a request stands."""
    with urlopen(f"{url}/v1/requests/{name}", timeout=60) as response:
        return str(json.load(response)["state"])


def test_a_client_that_leaves_frees_its_rows(parrot_url: str) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 500, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    address = urlsplit(parrot_url)
    with socket.create_connection((address.hostname or "", address.port or 80), timeout=60) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: leaves\r\n"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        assert b"200 OK" in connection.recv(4096)
        assert under_way(parrot_url) == 4
    while (state := state_of(parrot_url, "leaves")) in ("waiting", "running"):
        pass
    assert (state, under_way(parrot_url)) == ("cancelled", 0)
