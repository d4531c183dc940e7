"""The second turn of a chat, on a real server: what it need not read, who profits, and what the API tells of it."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.live_server import serve_here

KEYS = "alice-key-0123456789abcdef", "bob-key-0123456789abcdefgh"
HISTORY: list[Any] = [{"role": "system", "content": "the quick brown fox jumps over the lazy dog, and " * 12}]


@pytest.fixture(scope="module")
def url(tiny_folder: Path) -> Iterator[str]:
    with serve_here(tiny_folder, "--api-key", KEYS[0], "--api-key", KEYS[1]) as url:
        yield url


def ask(client: OpenAI, key: str, question: str, **fields: str) -> tuple[str, int, int]:
    """Text of an answer, tokens of its prompt, and those of them that were not read again."""
    messages = [*HISTORY, {"role": "user", "content": question}]
    asked: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0}
    reply: Any = client.with_options(api_key=key).chat.completions.create(**asked, extra_body=fields)
    cached = reply.usage.prompt_tokens_details.cached_tokens
    return reply.choices[0].message.content, reply.usage.prompt_tokens, cached


def count_hits(url: str) -> float:
    request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {KEYS[0]}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:prefix_cache_hits_total"))


def test_a_second_turn_reads_its_own_tokens_only_and_keys_share_nothing(client: OpenAI, url: str) -> None:
    first, tokens, cached = ask(client, KEYS[0], "hello")
    assert cached == 0
    again, _, cached = ask(client, KEYS[0], "hello")
    assert again == first and tokens - 64 <= cached < tokens
    _, _, begun_alike = ask(client, KEYS[0], "something else")
    assert 0 < begun_alike <= cached
    other, _, shared = ask(client, KEYS[1], "hello")
    assert other == first and shared == 0, "another client's prompts tell nothing"
    assert count_hits(url) == cached + begun_alike


def test_users_behind_one_key_are_kept_apart_by_a_salt(client: OpenAI) -> None:
    """It was passed over in silence."""
    for salt, kept in (("alice", False), ("alice", True), ("bob", False)):
        _, tokens, cached = ask(client, KEYS[0], "hello", cache_salt=salt)
        assert cached == (0 if not kept else (tokens - 1) // 64 * 64)
