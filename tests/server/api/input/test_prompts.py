"""Where prompts are encoded, short ones on the event loop and others in a thread; bodies made to take long to read."""

import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from server.api.errors import ApiError
from server.api.input.body import parse
from server.api.input.prompts import FEW, SHORT, Prompt, read_prompts
from server.api.input.schema import ChatBody, CompletionBody, ContentPart, Message
from tests.server.live import Live

LONG = "x" * (SHORT + 1)
HI = Message("user", "Hi")


class Woken(Exception):
    """A thread was asked for."""


async def read(live: Live, body: ChatBody | CompletionBody) -> list[Prompt]:
    model = replace(live.service.model, tokenizer_pool=Mock(submit=Mock(side_effect=Woken)))
    return await read_prompts(body, model)


SHORT_FORMS = [ChatBody(messages=[HI] * FEW), CompletionBody(prompt="Hi"), CompletionBody(prompt=[1, 2])]
LONG_FORMS = [
    ChatBody(messages=[HI, Message("user", LONG)]),
    ChatBody(messages=[HI] * (FEW + 1)),
    ChatBody(messages=[Message("user", [ContentPart("text", "Hi")])]),
    ChatBody(messages=[HI, Message("tool", "Hi", tool_call_id=LONG)]),
    ChatBody(messages=[HI], chat_template_kwargs={"a": LONG}),
    ChatBody(messages=[HI], instruction=LONG),
    CompletionBody(prompt=LONG),
    CompletionBody(prompt=[1] * (SHORT + 1)),
    CompletionBody(prompt=["Hi", "Hi"]),
    CompletionBody(prompt="Hi", instruction=LONG),
]


@pytest.mark.parametrize("body", SHORT_FORMS, ids=["a conversation", "a text", "tokens"])
async def test_no_thread_is_woken_for_what_is_short(live: Live, body: ChatBody | CompletionBody) -> None:
    [prompt] = await read(live, body)
    assert prompt.ids


@pytest.mark.parametrize("body", LONG_FORMS)
async def test_what_may_take_long_is_left_to_a_thread(live: Live, body: ChatBody | CompletionBody) -> None:
    with pytest.raises(Woken):
        await read(live, body)


def test_a_string_that_does_not_end_is_passed_over_once() -> None:
    begin = time.process_time()
    with pytest.raises(ApiError):
        parse(b'{"prompt": "a", "n": 1.5, "user": "' + b'\\"' * 30_000, CompletionBody)
    assert time.process_time() - begin < 2  # and not half a minute
