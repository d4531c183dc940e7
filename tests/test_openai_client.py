"""The official client walks the API of a live server with a tiny random model: its text is gibberish, so structure
and consistency are what is checked.
"""

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

MODEL = "tiny"
MESSAGES: list[Any] = [{"role": "user", "content": "Say something, 世界 😀."}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
COMPLETION: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "temperature": 0}
RESPONSE: dict[str, Any] = {"model": MODEL, "input": MESSAGES[0]["content"], "max_output_tokens": 12, "temperature": 0}
ENDLESS = {"ignore_eos": True}


def chat(client: OpenAI, **extra: object) -> Any:
    """A short greedy answer; of a kind that is checked here, as are those below."""
    return client.chat.completions.create(**CHAT, extra_body=ENDLESS | extra)


def complete(client: OpenAI, prompt: str | list[str] | list[int], **extra: object) -> Any:
    """A short greedy completion."""
    return client.completions.create(**COMPLETION, prompt=prompt, extra_body=ENDLESS | extra)


def respond(client: OpenAI, **extra: object) -> Any:
    """A short greedy response."""
    return client.responses.create(**RESPONSE, extra_body=ENDLESS | extra)


def test_a_streamed_answer_is_the_whole_answer(client: OpenAI) -> None:
    asked = {**CHAT, "extra_body": ENDLESS, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(**asked)
    choices, whole = [chunk.choices[0] for chunk in chunks], chat(client)
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    assert (choices[0].delta.role, choices[-1].finish_reason) == ("assistant", "length")
    assert (last.choices, last.usage) == ([], whole.usage)
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage.completion_tokens == 12 == whole.usage.total_tokens - whole.usage.prompt_tokens


def test_the_choices_of_one_call_are_those_of_calls_with_the_seeds_that_follow(client: OpenAI) -> None:
    together = chat(client, temperature=1.2, n=2, seed=40).choices
    alone = [chat(client, temperature=1.2, seed=seed).choices[0] for seed in (40, 41)]
    assert [choice.message.content for choice in together] == [choice.message.content for choice in alone]


def test_logprobs_of_a_completion_and_its_echo_agree_with_scoring_it_afterwards(client: OpenAI) -> None:
    made = complete(client, "One two", logprobs=0, echo=True)
    first, count = made.choices[0].logprobs, made.usage.prompt_tokens
    assert made.choices[0].text.startswith("One two")
    assert len(first.tokens) == len(first.token_logprobs) == made.usage.total_tokens
    assert first.token_logprobs[0] is None and all(one <= 0 for one in first.token_logprobs[1:])
    scored = complete(client, "One two", logprobs=0, echo=True, max_tokens=0).choices[0]
    assert scored.text == "One two"
    assert scored.logprobs.token_logprobs[1:] == pytest.approx(first.token_logprobs[1:count], abs=1e-4)


def test_several_prompts_are_answered_as_each_alone(client: OpenAI) -> None:
    prompts = ["One", "Two and more", "Three, which is the longest of them all"]
    together = complete(client, prompts)
    alone = [complete(client, prompt) for prompt in prompts]
    assert [choice.text for choice in together.choices] == [answer.choices[0].text for answer in alone]
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert together.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone)


def test_errors_are_raised_as_the_clients_own_kinds(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'other' is not served here") as unknown:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as hot:
        chat(client, temperature=9)
    assert (hot.value.param, hot.value.type) == ("temperature", "BadRequestError")
    with pytest.raises(openai.BadRequestError) as long:
        complete(client, "word " * 100_000)
    assert long.value.code == "context_length_exceeded"


async def test_many_clients_at_once_each_get_what_they_get_alone(many: AsyncOpenAI) -> None:
    async def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"{number} " * (number + 1)}]
        fields = {"messages": messages, "max_tokens": 10 + number, "temperature": 1, "seed": number}
        answer: Any = await many.chat.completions.create(**CHAT | fields)
        return str(answer.choices[0].message.content)

    together = await asyncio.gather(*(ask(number) for number in range(12)))
    assert [await ask(number) for number in range(12)] == together


def test_a_response_says_what_a_chat_does(client: OpenAI) -> None:
    response = respond(client)
    assert response.output_text == chat(client).choices[0].message.content
    assert (response.status, response.object) == ("incomplete", "response")
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 12 == response.usage.total_tokens - response.usage.input_tokens
    assert respond(client, instructions="Be brief.").usage.input_tokens > response.usage.input_tokens


def test_a_streamed_response_is_the_whole_response(client: OpenAI) -> None:
    whole = respond(client)
    events: list[Any] = list(client.responses.create(**RESPONSE | {"input": MESSAGES}, extra_body=ENDLESS, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    last = events[-1]
    assert (last.type, last.response.output_text) == ("response.incomplete", whole.output_text)
    assert last.response.usage == whole.usage


def test_the_clients_own_reader_of_response_streams_reads_ours(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Hi", temperature=0, max_output_tokens=64) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(pieces) == respond(client, input="Hi", max_output_tokens=64, ignore_eos=False).output_text
