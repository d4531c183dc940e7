"""Bad input is answered in OpenAI's shape, and no other request notices."""

import orjson
import pytest

from tests.server.fakes import ANSWER, END, REFUSED, UNKNOWN
from tests.server.live import CHAT, COMPLETIONS, Live, chat_body, parse_events, text_of


def chat(**fields: object) -> tuple[str, bytes]:
    return CHAT, orjson.dumps(chat_body(**fields))


def completion(**fields: object) -> tuple[str, bytes]:
    return COMPLETIONS, orjson.dumps({"prompt": "Hi", **fields})


def message(**fields: object) -> tuple[str, bytes]:
    return "/v1/messages", orjson.dumps({"max_tokens": 1, **fields})


def number(name: str, literal: str) -> tuple[str, bytes]:
    """A body with a number that no JSON library would write."""
    return COMPLETIONS, f'{{"prompt": "Hi", "{name}": {literal}}}'.encode()


def turn(content: object, role: str = "user") -> list[dict[str, object]]:
    return [{"role": role, "content": content}]


# code of the error -> field, which is the one at fault -> values that it may not have, the other fields right
OF_CHATS: dict[str, dict[str, tuple[object, ...]]] = {
    "invalid_value": {
        "temperature": ("hot", -0.1, 2.1),
        "top_p": (-0.1, 1.1),
        "top_k": (-2,),
        "min_p": (1.5,),
        "presence_penalty": (3,),
        "frequency_penalty": (-3,),
        "repetition_penalty": (0,),
        "stream": (1,),
        "n": (True, 0, 1_000_000),
        "model": (7,),
        "priority": (2**40,),
        "deadline_ms": (0, 86_400_001),
        "max_tokens": (1.5, -1),
        "max_completion_tokens": (0,),
        "stop": (["x"] * 10_000, "", "x" * 257),
        "stop_token_ids": ("1", [-1]),
        "logit_bias": ({"1": 101}, {str(i): 0 for i in range(1025)}),
        "messages": ([], "Hi", ["Hi"], turn("") * 2049, [{"content": "Hi"}], turn("Hi", "wizard"), turn(3)),
        "tools": ([{"type": "function"}],),
        "chat_template_kwargs": ({"a": [1]},),
        "response_format": ({"type": "yaml"},),
        "best_of": ("x",),
        "instruction": (5,),
        "instruction_split": ("last-line",),
    },
    "invalid_request": {
        "max_tokens": (0,),
        "min_tokens": (10_000,),
        "stop_token_ids": ([END + 1],),
        "logit_bias": ({"x": 1}, {"²": 1}, {"257": 1}),
        "top_logprobs": (2,),
        "stream_options": ({},),
        "messages": (
            *(turn(REFUSED), turn(None), turn([{"type": "text"}]), turn(f"a{UNKNOWN}")),
            [{"role": "assistant", "tool_calls": [{}]}],
        ),
        "continue_final_message": (True,),
        "tool_choice": ("required",),
    },
    "unsupported": {
        "messages": (turn([{"type": "image_url"}]),),
        "chat_template": ("{{ x }}",),
        "modalities": (["text", "audio"],),
        "function_call": ({"name": "f"},),
        "functions": ([{"name": "f"}],),
        "skip_special_tokens": (False,),
        "best_of": (2,),
    },
    "context_length_exceeded": {"messages": (turn("x" * 300), turn("x" * 240))},
    "model_not_found": {"model": ("gpt-9", "a\r\nb")},
}
OF_COMPLETIONS: dict[str, dict[str, tuple[object, ...]]] = {
    "invalid_value": {
        "prompt": ("", [], [[1, "a"]]),
        "seed": (2**63,),
        "deadline_ms": ("soon",),
        "max_tokens": ("64000",),
        "logprobs": (21,),
    },
    "invalid_request": {
        "prompt": (["a", ""], [[]], ["a"] * 257, ["a", [1]], [1, "a"], [1, END + 1], [2**64 - 1], [-1], UNKNOWN),
    },
    "unsupported": {"best_of": (2,), "suffix": ("end",), "use_beam_search": (True,)},
    "context_length_exceeded": {"prompt": ([1] * 256, "x" * 1000, ["a", "x" * 256])},
}

NO_JSON: dict[str, bytes] = {
    "no body": b"",
    "lists 10,000 deep": b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "lists 60,000 deep": b'{"x": ' + b"[" * 60_000 + b"]" * 60_000 + b"}",
    "lists 257 deep": b'{"x": ' + b"[" * 256 + b"]" * 256 + b"}",
    "objects 257 deep behind quotes": rb'{"\"": "\\", "x": ' + b'{"a": ' * 256 + b"1" + b"}" * 257,
    "malformed JSON": b'{"messages": [',
    "JSON with a byte order mark": b"\xef\xbb\xbf{}",
    "no UTF-8": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "NaN": b'{"prompt": "Hi", "temperature": NaN}',
    "infinity": b'{"prompt": "Hi", "temperature": Infinity}',
    "a surrogate in a message": rb'{"messages":[{"role":"user","content":"\ud83d"}]}',
    "a lone surrogate in a prompt": rb'{"prompt": "\udc00"}',
}

BAD: dict[str, tuple[tuple[str, bytes], str | None, str]] = {
    # what: (request, param, code)
    **{what: ((CHAT, body), None, "invalid_json") for what, body in NO_JSON.items()},
    **{f"{body.decode()} for an object": ((CHAT, body), None, "invalid_value") for body in (b"[]", b"1", b"null")},
    "no messages": ((CHAT, b"{}"), "messages", "invalid_value"),
    "a float beyond all floats": (number("temperature", "1e400"), "temperature", "invalid_value"),
    "an integer beyond 64 bits": (number("seed", "9" * 30), "seed", "invalid_value"),
    "an answer beyond all numbers": (number("max_tokens", "9" * 30), "max_tokens", "invalid_value"),
    "min_tokens over max_tokens": (chat(min_tokens=9, max_tokens=8), "min_tokens", "invalid_request"),
    "n times prompts too many": (completion(prompt=["a"] * 100, n=3), "n", "invalid_request"),
    "too many alternatives": (chat(logprobs=True, top_logprobs=21), "top_logprobs", "invalid_value"),
    "streamed prompt_logprobs": (chat(prompt_logprobs=1, stream=True), "prompt_logprobs", "invalid_request"),
    "a turn to go on and a new one": (
        chat(messages=turn("a", "assistant"), continue_final_message=True, add_generation_prompt=True),
        "continue_final_message",
        "invalid_request",
    ),
    **{
        f"{code}: {name} {place}: {value!r:.40}": (make(**{name: value}), name, code)
        for make, codes in ((chat, OF_CHATS), (completion, OF_COMPLETIONS))
        for code, fields in codes.items()
        for name, values in fields.items()
        for place, value in enumerate(values)
    },
}


@pytest.mark.parametrize(("request_", "param", "code"), BAD.values(), ids=BAD)
async def test_bad_input_harms_nobody(live: Live, request_: tuple[str, bytes], param: str | None, code: str) -> None:
    live.dispatcher.pause = 1
    status, kind = (404, "NotFoundError") if code == "model_not_found" else (400, "BadRequestError")
    async with live.streaming(CHAT, chat_body()) as other:
        begun = await other.readuntil(b"\n\n")
        found, reply = await live.post(*request_)
        said = reply["error"].pop("message")
        assert (found, reply) == (status, {"error": {"type": kind, "param": param, "code": code}}), said
        assert len(said) > 10 and said.isprintable()
        live.dispatcher.release()
        events = parse_events(begun + await other.read())
    assert text_of(events) == ANSWER
    assert len(live.dispatcher.submitted) == 1
    assert live.dispatcher.cancelled == []


async def test_a_body_may_be_256_deep_and_write_of_brackets(live: Live) -> None:
    for value in (b"[" * 255 + b"]" * 255, rb'"\"' + b"[" * 1000 + rb'\\"'):
        await live.obtain(CHAT, orjson.dumps(chat_body())[:-1] + b', "x": ' + value + b"}")


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "granted"), [(255, None, 1), (250, 6, 6), (245, None, 11), (1, 255, 255), (1, 256, 255)]
)
async def test_answers_may_have_what_is_left(live: Live, prompt: int, max_tokens: int | None, granted: int) -> None:
    await live.complete(prompt=[1] * prompt, max_tokens=max_tokens)
    assert live.dispatcher.submitted[0].sampling.max_tokens == granted


NAMED = [
    (*chat(messages=turn("a", "bot")), "messages", "it is one of assistant, developer, function, system, tool, user"),
    ("/v1/responses", b'{"input": "a", "truncation": "middle"}', "truncation", "it is one of auto, disabled"),
    (*message(messages=turn("a", "bot")), None, "it is one of assistant, system, user"),
    (CHAT, b'{"prompt": "Hi"}', "messages", "this path wants `messages`"),
    (COMPLETIONS, orjson.dumps(chat_body()), "prompt", "this path wants `prompt`"),
    (*chat(messages=turn("a") + turn([{"type": "text", "text": 1}])), "messages", "messages[1].content[0].text: "),
]


@pytest.mark.parametrize(("path", "body", "param", "message"), NAMED)
async def test_what_would_do_is_named(live: Live, path: str, body: bytes, param: str | None, message: str) -> None:
    """`role: "bot"` was an "Invalid enum value", of which the valid ones were not named."""
    error = await live.refused(path, body)
    assert message in error["message"] and error.get("param") == param  # Anthropic's errors have none


LONG = "x" * 100_000
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ECHOES = {
    "a tool that there is not": chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": LONG}}),
    "a block": message(messages=turn([{"type": LONG}])),
    "a model": chat(model=LONG),
}


@pytest.mark.parametrize("case", ECHOES)
async def test_what_a_client_is_told_has_a_bound(live: Live, case: str) -> None:
    """An error held whatever name it was about."""
    answered, reply = await live.post(*ECHOES[case])
    assert answered in (400, 404)
    assert len(orjson.dumps(reply)) < 2000


async def test_what_asks_for_nothing_is_passed_over(live: Live) -> None:
    nothing: dict[str, object] = dict.fromkeys(
        ["temperature", "stop", "n", "seed", "logit_bias", "stream_options", "tools", "logprobs"]
    )
    nothing |= {"chat_template": None, "use_beam_search": False, "skip_special_tokens": True, "modalities": ["text"]}
    nothing |= {"add_generation_prompt": True, "function_call": "none", "bad_words": [], "audio": {}, "user": "me"}
    nothing |= {"tool_choice": "none", "response_format": {"type": "text"}, "unheard_of": [1, {"deep": None}]}
    assert (await live.chat(**nothing))["choices"][0]["message"]["content"] == ANSWER
