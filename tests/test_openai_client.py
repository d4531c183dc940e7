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


def test_models_are_listed_and_found(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "lengthwise"


def test_a_whole_answer_counts_its_tokens(client: OpenAI) -> None:
    answer = chat(client)
    (choice,) = answer.choices
    assert (answer.object, choice.message.role, choice.finish_reason) == ("chat.completion", "assistant", "length")
    assert choice.message.content is not None
    assert answer.usage.completion_tokens == 12 == answer.usage.total_tokens - answer.usage.prompt_tokens


def test_a_streamed_answer_is_the_whole_answer(client: OpenAI) -> None:
    asked = {**CHAT, "extra_body": ENDLESS, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(**asked)
    choices, whole = [chunk.choices[0] for chunk in chunks], chat(client)
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    assert (choices[0].delta.role, choices[-1].finish_reason) == ("assistant", "length")
    assert (last.choices, last.usage) == ([], whole.usage)


def test_n_greedy_answers_are_equal_and_n_sampled_ones_are_not(client: OpenAI) -> None:
    same = chat(client, n=3)
    assert [choice.index for choice in same.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in same.choices}) == 1
    different = chat(client, n=3, temperature=1.5, seed=1, max_tokens=24)
    assert len({choice.message.content for choice in different.choices}) == 3


def test_the_choices_of_one_call_are_those_of_calls_with_the_seeds_that_follow(client: OpenAI) -> None:
    together = chat(client, temperature=1.2, n=2, seed=40).choices
    alone = [chat(client, temperature=1.2, seed=seed).choices[0] for seed in (40, 41)]
    assert [choice.message.content for choice in together] == [choice.message.content for choice in alone]


def test_an_answer_ends_before_its_stop_string(client: OpenAI) -> None:
    whole = chat(client, max_tokens=40).choices[0].message.content
    stop = whole[5:8]
    stopped = chat(client, max_tokens=40, stop=[stop]).choices[0]
    assert (stopped.finish_reason, stopped.message.content) == ("stop", whole[: whole.index(stop)])
    included = chat(client, max_tokens=40, stop=stop, include_stop_str_in_output=True).choices[0]
    assert included.message.content == whole[: whole.index(stop) + len(stop)]


def test_logprobs_of_a_chat_go_with_its_tokens(client: OpenAI) -> None:
    scored = chat(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(scored) == 12
    for token in scored:
        best = [one.logprob for one in token.top_logprobs]
        assert len(best) == 3 and best == sorted(best, reverse=True)
        assert token.logprob == pytest.approx(best[0]) and token.logprob <= 0  # greedy takes the likeliest


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


def test_a_streamed_completion_is_the_whole_completion(client: OpenAI) -> None:
    stream = client.completions.create(**COMPLETION, prompt=[5, 6, 7], stream=True, extra_body=ENDLESS)
    assert "".join(chunk.choices[0].text for chunk in stream) == complete(client, [5, 6, 7]).choices[0].text


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


def test_nul_is_read_and_counted_like_any_character(client: OpenAI) -> None:
    plain, holding = complete(client, "ab").usage, complete(client, "a\0b", stop="\0").usage
    assert holding.prompt_tokens == plain.prompt_tokens + 1
    reply = chat(client, messages=[{"role": "user", "content": "a\0"}], max_tokens=2)
    assert reply.choices[0].finish_reason == "length"


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


def test_a_response_goes_on_from_one_that_was_stored(client: OpenAI) -> None:
    first = respond(client, input="Hi")
    second = respond(client, input="More", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.total_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        respond(client, input="More", previous_response_id=first.id)


def test_tokenizing_there_and_back_keeps_the_text(client: OpenAI) -> None:
    text = "Hello 世界 😀 <|im_end|>"
    tokens = client.post("../tokenize", cast_to=dict[str, Any], body={"prompt": text})
    assert tokens["count"] == len(tokens["tokens"])
    assert client.post("../detokenize", cast_to=dict[str, str], body={"tokens": tokens["tokens"]})["prompt"] == text
    counted = client.post("../tokenize", cast_to=dict[str, Any], body={"messages": MESSAGES})
    assert chat(client).usage.prompt_tokens == counted["count"]
