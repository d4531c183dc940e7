"""A server with a real tokenizer, read over a raw socket: what is on the wire is well-formed and whole."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
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


@contextmanager
def sent(url: str, path: str, body: dict[str, object], **headers: str) -> Iterator[socket.socket]:
    """A connection over which a call has been sent."""
    address, data = urlsplit(url), json.dumps(body).encode()
    told = {"Host": "[::1]", "Content-Length": str(len(data)), **headers}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in told.items())
    with socket.create_connection((address.hostname or "", address.port or 80), timeout=60) as connection:
        connection.sendall(f"{head}\r\n".encode() + data)
        yield connection


def post(url: str, **body: object) -> bytes:
    """The body of the answer to a chat request, chunks joined."""
    asked = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, **body}
    with sent(url, "/v1/chat/completions", asked, Connection="close") as connection:
        raw = b"".join(iter(lambda: connection.recv(7), b""))  # an odd size, to cut characters apart
    headers, _, rest = raw.partition(b"\r\n\r\n")
    assert headers.split(b"\r\n")[0].endswith(b"200 OK")
    return b"".join(dechunk(rest)) if b"transfer-encoding: chunked" in headers.lower() else rest


def choices_of(url: str, **body: object) -> Any:
    return json.loads(post(url, **body))["choices"]


@pytest.mark.parametrize("max_tokens", range(1, 20))
def test_a_stream_joins_to_the_whole_answer_wherever_it_is_cut(parrot_url: str, max_tokens: int) -> None:
    message = choices_of(parrot_url, max_tokens=max_tokens)[0]["message"]["content"]
    stream = post(parrot_url, max_tokens=max_tokens, stream=True)
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in parse_events(stream)]
    assert "".join(pieces) == message
    assert (SAYING * 20).startswith(message)


def test_a_cut_off_character_is_no_text_but_its_tokens_are_told(parrot_url: str) -> None:
    """So a client that wants them has the bytes."""
    for max_tokens in range(1, 20):
        reply = json.loads(post(parrot_url, max_tokens=max_tokens, logprobs=True))
        (choice,) = reply["choices"]
        told = [token["bytes"] for token in choice["logprobs"]["content"]]
        assert len(told) == reply["usage"]["completion_tokens"] == max_tokens
        assert b"".join(map(bytes, told)).decode(errors="ignore") == choice["message"]["content"]


def test_answers_that_repeat_themselves_are_ended_where_that_is_wanted(tmp_path: Path) -> None:
    """Whole and streamed, each of several; not one that has to match a grammar."""
    with serve_here(tiny.build_parrot(tmp_path / "parrot", SAYING), "--stop-repetition") as url:
        whole = choices_of(url, n=2, max_tokens=400)
        (last,) = parse_events(post(url, max_tokens=400, stream=True))[-1]["choices"]
        (held,) = choices_of(url, max_tokens=300, structured_outputs={"regex": f"[{SAYING}]*"})
        ends = [(one["finish_reason"], one["stop_reason"]) for one in (*whole, last, held)]
        assert ends == [("stop", "repetition")] * 3 + [("length", None)]


def read(url: str, path: str) -> Any:
    with urlopen(url + path, timeout=60) as response:
        return json.load(response)


def under_way(url: str) -> int:
    """Requests that wait or run."""
    told = read(url, "/health")
    return int(told["requests_waiting"] + told["requests_running"])


def test_a_client_that_leaves_frees_its_rows(parrot_url: str) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 500, "ignore_eos": True, "stream": True}
    with sent(parrot_url, "/v1/completions", body, **{"X-Request-Id": "leaves"}) as connection:
        assert b"200 OK" in connection.recv(4096)
        assert under_way(parrot_url) == 4
    while (state := read(parrot_url, "/v1/requests/leaves")["state"]) in ("waiting", "running"):
        pass
    assert (state, under_way(parrot_url)) == ("cancelled", 0)
