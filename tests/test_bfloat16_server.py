"""A live server in bfloat16: an answer may depend on its neighbours there; what is promised all the same is checked."""

import asyncio
import codecs
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests import tiny
from tests.live_server import serve_here

MODEL = "tiny"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_here(tiny.build(tmp_path_factory.mktemp("models") / MODEL), "--dtype", "bfloat16") as url:
        yield url


def asked(number: int) -> dict[str, Any]:
    """A seeded request; each number has another prompt and another length."""
    messages = [{"role": "user", "content": f"{number} " * (number + 1)}]
    return {"model": MODEL, "messages": messages, "max_tokens": 10 + number, "temperature": 1, "seed": number}


async def test_every_answer_beside_others_has_its_length_and_its_tokens(many: AsyncOpenAI) -> None:
    fields: dict[str, Any] = {"logprobs": True, "extra_body": {"ignore_eos": True}}
    calls = (many.chat.completions.create(**asked(number) | fields) for number in range(12))
    for number, answer in enumerate(await asyncio.gather(*calls)):
        assert answer.usage.completion_tokens == 10 + number
        scored = answer.choices[0].logprobs.content
        said = b"".join(bytes(token.bytes or []) for token in scored if not token.token.startswith("<|"))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # which waits for the rest of the last character
        assert decoder.decode(said) == answer.choices[0].message.content


def test_a_seeded_answer_without_neighbours_is_the_same_whole_and_streamed(client: OpenAI) -> None:
    for number in range(4):
        whole = client.chat.completions.create(**asked(number)).choices[0].message.content
        chunks = client.chat.completions.create(**asked(number), stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
