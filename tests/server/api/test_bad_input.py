"""Bad input is answered in OpenAI's shape, and no other request notices."""

from typing import Any

import orjson
import pytest

from tests.server.fakes import ANSWER, END, REFUSED, UNKNOWN
from tests.server.live import Live, chat_body, parse_events, text_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(**fields: object) -> tuple[str, bytes]:
    return CHAT, orjson.dumps(chat_body(**fields))


def says(content: object, role: str = "user") -> tuple[str, bytes]:
    return chat(messages=[{"role": role, "content": content}])


def completion(**fields: object) -> tuple[str, bytes]:
    return COMPLETIONS, orjson.dumps({"prompt": "Hi", **fields})


def raw(body: bytes) -> tuple[str, bytes]:
    return CHAT, body


def number(name: str, literal: str) -> tuple[str, bytes]:
    """A body with a number that no JSON library would write."""
    return COMPLETIONS, f'{{"prompt": "Hi", "{name}": {literal}}}'.encode()


BAD: dict[str, tuple[tuple[str, bytes], str | None, str]] = {
    # what: (request, param, code)
    "no body": (raw(b""), None, "invalid_json"),
    "lists 10,000 deep": (raw(b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"), None, "invalid_json"),
    "malformed JSON": (raw(b'{"messages": ['), None, "invalid_json"),
    "JSON with a byte order mark": (raw(b"\xef\xbb\xbf{}"), None, "invalid_json"),
    "no UTF-8": (raw(b'{"messages": [{"role": "user", "content": "\xff"}]}'), None, "invalid_json"),
    "a list": (raw(b"[]"), None, "invalid_value"),
    "a number": (raw(b"1"), None, "invalid_value"),
    "null": (raw(b"null"), None, "invalid_value"),
    "an empty object": (raw(b"{}"), None, "invalid_value"),
    "lists 60,000 deep": (raw(b'{"x": ' + b"[" * 60_000 + b"]" * 60_000 + b"}"), None, "invalid_json"),
    "NaN": (number("temperature", "NaN"), None, "invalid_json"),
    "infinity": (number("temperature", "Infinity"), None, "invalid_json"),
    "a float beyond all floats": (number("temperature", "1e400"), "temperature", "invalid_value"),
    "an integer beyond 64 bits": (number("seed", "9" * 30), "seed", "invalid_value"),
    "a seed beyond 63 bits": (completion(seed=2**63), "seed", "invalid_value"),
    "text for a number": (chat(temperature="hot"), "temperature", "invalid_value"),
    "a number for a flag": (chat(stream=1), "stream", "invalid_value"),
    "a flag for a number": (chat(n=True), "n", "invalid_value"),
    "a fraction for a count": (chat(max_tokens=1.5), "max_tokens", "invalid_value"),
    "a number for the model": (chat(model=7), "model", "invalid_value"),
    "text for a list": (chat(stop_token_ids="1"), "stop_token_ids", "invalid_value"),
    "temperature too low": (chat(temperature=-0.1), "temperature", "invalid_value"),
    "temperature too high": (chat(temperature=2.1), "temperature", "invalid_value"),
    "a top_p below zero": (chat(top_p=-0.1), "top_p", "invalid_value"),
    "top_p over one": (chat(top_p=1.1), "top_p", "invalid_value"),
    "top_k below -1": (chat(top_k=-2), "top_k", "invalid_value"),
    "min_p over one": (chat(min_p=1.5), "min_p", "invalid_value"),
    "presence_penalty out of range": (chat(presence_penalty=3), "presence_penalty", "invalid_value"),
    "frequency_penalty out of range": (chat(frequency_penalty=-3), "frequency_penalty", "invalid_value"),
    "repetition_penalty of zero": (chat(repetition_penalty=0), "repetition_penalty", "invalid_value"),
    "priority out of range": (chat(priority=2**40), "priority", "invalid_value"),
    "a deadline in the past": (chat(deadline_ms=0), "deadline_ms", "invalid_value"),
    "a deadline after more than a day": (chat(deadline_ms=86_400_001), "deadline_ms", "invalid_value"),
    "text for a deadline": (completion(deadline_ms="soon"), "deadline_ms", "invalid_value"),
    "max_tokens of zero": (chat(max_tokens=0), "max_tokens", "invalid_request"),
    "negative max_tokens": (chat(max_tokens=-1), "max_tokens", "invalid_value"),
    "max_completion_tokens of zero": (chat(max_completion_tokens=0), "max_completion_tokens", "invalid_value"),
    "min_tokens over max_tokens": (chat(min_tokens=9, max_tokens=8), "min_tokens", "invalid_request"),
    "min_tokens over the context": (chat(min_tokens=10_000), "min_tokens", "invalid_request"),
    "n of zero": (chat(n=0), "n", "invalid_value"),
    "n of a million": (chat(n=1_000_000), "n", "invalid_value"),
    "n times prompts too many": (completion(prompt=["a"] * 100, n=3), "n", "invalid_request"),
    "too many prompts": (completion(prompt=["a"] * 257), "prompt", "invalid_request"),
    "10,000 stop strings": (chat(stop=["x"] * 10_000), "stop", "invalid_value"),
    "an empty stop string": (chat(stop=""), "stop", "invalid_value"),
    "a very long stop string": (chat(stop="x" * 257), "stop", "invalid_value"),
    "a stop token out of the vocabulary": (chat(stop_token_ids=[END + 1]), "stop_token_ids", "invalid_request"),
    "a negative stop token": (chat(stop_token_ids=[-1]), "stop_token_ids", "invalid_value"),
    "a bias on no token": (chat(logit_bias={"x": 1}), "logit_bias", "invalid_request"),
    "a bias on digits that are not ASCII": (chat(logit_bias={"²": 1}), "logit_bias", "invalid_request"),
    "a bias out of the vocabulary": (chat(logit_bias={"257": 1}), "logit_bias", "invalid_request"),
    "a bias too strong": (chat(logit_bias={"1": 101}), "logit_bias", "invalid_value"),
    "too many biases": (chat(logit_bias={str(i): 0 for i in range(1025)}), "logit_bias", "invalid_value"),
    "too many alternatives": (chat(logprobs=True, top_logprobs=21), "top_logprobs", "invalid_value"),
    "alternatives without logprobs": (chat(top_logprobs=2), "top_logprobs", "invalid_request"),
    "too many alternatives of a completion": (completion(logprobs=21), "logprobs", "invalid_value"),
    "streamed prompt_logprobs": (chat(prompt_logprobs=1, stream=True), "prompt_logprobs", "invalid_request"),
    "stream_options without a stream": (chat(stream_options={}), "stream_options", "invalid_request"),
    "an unknown model": (chat(model="gpt-9"), "model", "model_not_found"),
    "a model's name with line breaks": (chat(model="a\r\nb"), "model", "model_not_found"),
    "no messages": (chat(messages=[]), "messages", "invalid_value"),
    "messages that are text": (chat(messages="Hi"), "messages", "invalid_value"),
    "a message that is text": (chat(messages=["Hi"]), "messages", "invalid_value"),
    "too many messages": (chat(messages=[{"role": "user", "content": ""}] * 2049), "messages", "invalid_value"),
    "a message without a role": (chat(messages=[{"content": "Hi"}]), "messages", "invalid_value"),
    "an unknown role": (says("Hi", "wizard"), "messages", "invalid_value"),
    "a message that the template refuses": (says(REFUSED), "messages", "invalid_request"),
    "a message without content": (says(None), "messages", "invalid_request"),
    "content that is a number": (says(3), "messages", "invalid_value"),
    "content that is an image": (says([{"type": "image_url"}]), "messages", "unsupported"),
    "a text part without text": (says([{"type": "text"}]), "messages", "invalid_request"),
    "a message that the tokenizer cannot encode": (says(f"a{UNKNOWN}"), "messages", "invalid_request"),
    "a surrogate in a message": (raw(rb'{"messages":[{"role":"user","content":"\ud83d"}]}'), None, "invalid_json"),
    "a conversation longer than the context": (says("x" * 300), "messages", "context_length_exceeded"),
    "a conversation that leaves no room": (says("x" * 240), "messages", "context_length_exceeded"),
    "an empty prompt": (completion(prompt=""), "prompt", "invalid_value"),
    "no prompts": (completion(prompt=[]), "prompt", "invalid_value"),
    "an empty prompt among others": (completion(prompt=["a", ""]), "prompt", "invalid_request"),
    "a prompt of no tokens": (completion(prompt=[[]]), "prompt", "invalid_request"),
    "prompts of different kinds": (completion(prompt=["a", [1]]), "prompt", "invalid_request"),
    "text among token ids": (completion(prompt=[1, "a"]), "prompt", "invalid_request"),
    "text inside token ids": (completion(prompt=[[1, "a"]]), "prompt", "invalid_value"),
    "a token out of the vocabulary": (completion(prompt=[1, END + 1]), "prompt", "invalid_request"),
    "a huge token": (completion(prompt=[2**64 - 1]), "prompt", "invalid_request"),
    "a negative token": (completion(prompt=[-1]), "prompt", "invalid_request"),
    "a prompt that the tokenizer cannot encode": (completion(prompt=UNKNOWN), "prompt", "invalid_request"),
    "a lone surrogate in a prompt": (raw(rb'{"prompt": "\udc00"}'), None, "invalid_json"),
    "a prompt as long as the context": (completion(prompt=[1] * 256), "prompt", "context_length_exceeded"),
    "text longer than the context can be": (completion(prompt="x" * 1000), "prompt", "context_length_exceeded"),
    "one prompt too long of two": (completion(prompt=["a", "x" * 256]), "prompt", "context_length_exceeded"),
    "an answer beyond all numbers": (number("max_tokens", "9" * 30), "max_tokens", "invalid_value"),
    "text for an answer's length": (completion(max_tokens="64000"), "max_tokens", "invalid_value"),
    "best_of other than n": (completion(best_of=2), "best_of", "unsupported"),
    "a suffix": (completion(suffix="end"), "suffix", "unsupported"),
    "a tool without a function": (chat(tools=[{"type": "function"}]), "tools", "invalid_value"),
    "a template in the request": (chat(chat_template="{{ x }}"), "chat_template", "unsupported"),
    "lists for a template": (chat(chat_template_kwargs={"a": [1]}), "chat_template_kwargs", "invalid_value"),
    "a beam search": (completion(use_beam_search=True), "use_beam_search", "unsupported"),
    "speech": (chat(modalities=["text", "audio"]), "modalities", "unsupported"),
    "a forced function": (chat(function_call={"name": "f"}), "function_call", "unsupported"),
    "control tokens in the answer": (chat(skip_special_tokens=False), "skip_special_tokens", "unsupported"),
    "no turn to go on with": (chat(continue_final_message=True), "continue_final_message", "invalid_request"),
    "a turn to go on and a new one": (
        chat(messages=[{"role": "assistant", "content": "a"}], continue_final_message=True, add_generation_prompt=True),
        "continue_final_message",
        "invalid_request",
    ),
    "functions": (chat(functions=[{"name": "f"}]), "functions", "unsupported"),
    "a forced call without tools": (chat(tool_choice="required"), "tool_choice", "invalid_request"),
    "an unknown format": (chat(response_format={"type": "yaml"}), "response_format", "invalid_value"),
    "calls of nothing": (chat(messages=[{"role": "assistant", "tool_calls": [{}]}]), "messages", "invalid_request"),
}

TYPES = {400: "BadRequestError", 404: "NotFoundError"}


def check_error(reply: Any, status: int) -> dict[str, str]:
    """OpenAI's error object, with a message that a person can read."""
    assert set(reply) == {"error"}
    error: dict[str, str] = reply["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == TYPES[status]
    assert len(error["message"]) > 10
    assert error["message"].isprintable()
    return error


@pytest.mark.parametrize(("request_", "param", "code"), BAD.values(), ids=BAD)
async def test_bad_input_is_refused_and_nobody_else_notices(
    live: Live, request_: tuple[str, bytes], param: str | None, code: str
) -> None:
    live.dispatcher.pause, status = 1, 404 if code == "model_not_found" else 400
    body = orjson.dumps(chat_body(stream=True))
    async with live.session.post(live.url + CHAT, data=body) as other:
        begun = await other.content.readuntil(b"\n\n")

        answered, reply = await live.post(*request_)
        assert answered == status, reply
        error = check_error(reply, status)
        assert (error["param"], error["code"]) == (param, code), error

        live.dispatcher.release()
        events = parse_events(begun + await other.read())
    assert text_of(events) == ANSWER
    assert len(live.dispatcher.submitted) == 1
    assert live.dispatcher.cancelled == []


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "granted"), [(255, None, 1), (250, 6, 6), (245, None, 11), (1, 255, 255), (1, 256, 255)]
)
async def test_answers_may_have_what_is_left(live: Live, prompt: int, max_tokens: int | None, granted: int) -> None:
    await live.complete(prompt=[1] * prompt, max_tokens=max_tokens)
    assert live.dispatcher.submitted[0].sampling.max_tokens == granted


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (says("a", role="bot"), "it is one of assistant, developer, function, system, tool, user"),
        (("/v1/responses", b'{"input": "a", "truncation": "middle"}'), "it is one of auto, disabled"),
        (
            ("/v1/messages", orjson.dumps({"max_tokens": 1, "messages": [{"role": "bot", "content": "a"}]})),
            "it is one of assistant, system, user",
        ),
        (raw(b'{"prompt": "Hi"}'), "this path wants `messages`"),
        ((COMPLETIONS, orjson.dumps(chat_body())), "this path wants `prompt`"),
    ],
)
async def test_what_would_do_is_named(live: Live, request_: tuple[str, bytes], message: str) -> None:
    """`role: "bot"` was an "Invalid enum value", of which the valid ones were not named."""
    status, reply = await live.post(*request_)
    assert status == 400 and message in reply["error"]["message"], reply


LONG = "x" * 100_000
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ECHOES = {
    "a tool that there is not": chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": LONG}}),
    "a block": (
        "/v1/messages",
        orjson.dumps({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": LONG}]}]}),
    ),
    "a model": chat(model=LONG),
}


@pytest.mark.parametrize("case", ECHOES)
async def test_what_a_client_is_told_has_a_bound(live: Live, case: str) -> None:
    """An error held whatever name it was about."""
    answered, reply = await live.post(*ECHOES[case])
    assert answered in (400, 404)
    assert len(orjson.dumps(reply)) < 2000


async def test_the_message_names_the_place_inside_a_list(live: Live) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": 1}]}]
    _, reply = await live.post(CHAT, {"messages": turns})
    assert reply["error"]["message"].startswith("messages[1].content[0].text: ")
    assert reply["error"]["param"] == "messages"


async def test_what_asks_for_nothing_is_passed_over(live: Live) -> None:
    nothing: dict[str, object] = {
        "use_beam_search": False,
        "chat_template": None,
        "modalities": ["text"],
        "skip_special_tokens": True,
        "add_generation_prompt": True,
        "function_call": "none",
        "bad_words": [],
        "audio": {},
        "user": "me",
        "unheard_of": [1, {"deep": None}],
    }
    assert (await live.chat(**nothing))["choices"][0]["message"]["content"] == ANSWER
