"""POST /tokenize and /detokenize, over loopback."""

import pytest

from tests.server.fakes import END, UNKNOWN, FakeText
from tests.server.live import Live

TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]


async def test_a_prompt_is_split_and_counted_and_never_in_line(live: Live) -> None:
    reply = await live.obtain("/tokenize", {"model": "fake", "prompt": "Hé"})
    assert reply == {"count": 3, "max_model_len": 256, "tokens": [72, 195, 169], "token_strs": None}
    assert (await live.obtain("/tokenize", {"prompt": "Hi", "return_token_strs": True}))["token_strs"] == ["H", "i"]
    assert live.dispatcher.submitted == []


@pytest.mark.parametrize("speaks", [True, False, None])
async def test_a_conversation_is_split_as_a_chat_with_it_is(live: Live, speaks: bool | None) -> None:
    given = {"messages": TURNS, "chat_template_kwargs": {"date": "today"}}
    reply = await live.obtain("/tokenize", {**given, "add_generation_prompt": speaks})
    text = f"date=today\nsystem:Be brief.\nuser:Hi\n{'' if speaks is False else 'assistant:'}"
    assert reply["tokens"] == FakeText().encode(text)
    if speaks is not False:
        await live.chat(**given)
        assert live.dispatcher.submitted[0].prompt == tuple(reply["tokens"])


async def test_tokens_are_joined_with_control_tokens_written_out(live: Live) -> None:
    assert await live.obtain("/detokenize", {"tokens": [72, 105, END]}) == {"prompt": "Hi<end>"}
    assert await live.obtain("/detokenize", {"tokens": []}) == {"prompt": ""}
    assert live.dispatcher.submitted == []


NO_PROMPTS: list[dict[str, object]] = [{}, {"prompt": "Hi", "messages": TURNS}, {"prompt": UNKNOWN}, {"prompt": 7}]
WRONG = [
    *(("/tokenize", body, 400, "prompt") for body in (*NO_PROMPTS, {"prompt": "x" * 1000})),
    ("/tokenize", {"messages": []}, 400, "messages"),
    ("/tokenize", {"messages": TURNS, "add_special_tokens": True}, 400, "add_special_tokens"),
    ("/tokenize", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
    ("/tokenize", {"messages": TURNS, "chat_template_kwargs": {"a": []}}, 400, "chat_template_kwargs"),
    ("/detokenize", {}, 400, "tokens"),
    *(("/detokenize", {"tokens": [token]}, 400, "tokens") for token in (END + 1, -1, "a")),
    ("/tokenize", {"prompt": "Hi", "model": "other"}, 404, "model"),
    ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), WRONG)
async def test_wrong_bodies_are_refused(live: Live, path: str, body: object, status: int, param: str) -> None:
    await live.refused(path, body, status, param=param)
