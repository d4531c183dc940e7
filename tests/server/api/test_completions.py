"""POST /v1/completions, whole and streamed."""

import pytest

from tests.server.fakes import ANSWER, END
from tests.server.live import Live, usage_of


async def test_a_completion_is_sixteen_tokens_long_unless_told_otherwise(live: Live) -> None:
    reply = await live.complete(prompt="Hi")
    assert reply["object"] == "text_completion"
    assert reply["id"].startswith("cmpl-")
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"] == usage_of(2, 16)
    assert reply["choices"][0]["text"] == ANSWER.encode()[:16].decode(errors="ignore")


PROMPTS = [
    ("Hi", [(72, 105)]),
    ([72, 105], [(72, 105)]),
    (["Hi", "é"], [(72, 105), (195, 169)]),
    ([[72], [105, END]], [(72,), (105, END)]),
]


@pytest.mark.parametrize(("prompt", "expected"), PROMPTS)
async def test_prompts_are_texts_or_ids(live: Live, prompt: object, expected: list[tuple[int, ...]]) -> None:
    reply = await live.complete(prompt=prompt, max_tokens=99)
    assert [request.prompt for request in live.dispatcher.submitted] == expected
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(expected)))
    assert {choice["text"] for choice in reply["choices"]} == {ANSWER}


async def test_n_answers_to_each_of_several_prompts_are_numbered_prompt_by_prompt(live: Live) -> None:
    reply = await live.complete(prompt=["a", "b"], n=2, best_of=2, seed=7, echo=True, max_tokens=1)
    assert [choice["text"] for choice in reply["choices"]] == ["aG", "aG", "bG", "bG"]
    assert [request.sampling.seed for request in live.dispatcher.submitted] == [7, 8, 7, 8]
    assert reply["usage"] == usage_of(2, 4)


async def test_a_stream_tells_the_same_as_the_whole_completion(live: Live) -> None:
    fields: dict[str, object] = {"prompt": ["x", "y"], "echo": True, "logprobs": 1, "max_tokens": 99}
    whole = await live.complete(**fields)
    events = await live.stream("/v1/completions", fields)
    for choice in whole["choices"]:
        parts = [one for event in events for one in event["choices"] if one["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for part in parts for value in part["logprobs"][name]] == values
        assert parts[-1]["finish_reason"] == choice["finish_reason"] == "stop"


async def test_logprobs_are_four_lists_of_one_length(live: Live) -> None:
    reply = await live.complete(prompt="p", logprobs=2, max_tokens=2)
    assert reply["choices"][0]["logprobs"] == {
        "tokens": ["G", "r"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"G": -0.5, "H": -1.5}, {"r": -0.5, "s": -1.5}],
        "text_offset": [0, 1],
    }


async def test_echo_puts_the_prompt_in_front_with_its_logprobs(live: Live) -> None:
    (choice,) = (await live.complete(prompt="é", echo=True, logprobs=0, max_tokens=2))["choices"]
    assert choice["text"] == "éGr"
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert choice["logprobs"]["top_logprobs"] is None, "0 asks for no alternatives"
    # The prompt's character has two tokens: the second begins nothing, so what follows stands at 1.
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2]
    assert (await live.complete(prompt=[72, 105], echo=True, max_tokens=1))["choices"][0]["text"] == "HiG"


async def test_echo_without_tokens_only_scores_the_prompt(live: Live) -> None:
    fields: dict[str, object] = {"prompt": "Hi", "echo": True, "logprobs": 1, "max_tokens": 0}
    whole = await live.complete(**fields)
    options = {"stream_options": {"include_usage": True}}
    streamed, closing = await live.stream("/v1/completions", fields | options)
    for choices, usage in ((whole["choices"], whole["usage"]), (streamed["choices"], closing["usage"])):
        (choice,) = choices
        assert (choice["text"], choice["finish_reason"], choice["logprobs"]["tokens"]) == ("Hi", "length", ["H", "i"])
        assert usage == usage_of(2, 0)


async def test_prompt_logprobs_come_with_each_choice(live: Live) -> None:
    choices = (await live.complete(prompt=["ab", "c"], prompt_logprobs=0, max_tokens=1))["choices"]
    assert [len(choice["prompt_logprobs"]) for choice in choices] == [2, 1] and choices[0]["logprobs"] is None


async def test_of_several_prompts_the_one_that_is_too_long_is_named(live: Live) -> None:
    """Only those of token ids, or of very many characters, were."""
    several: list[list[object]] = [["a", "x" * 256], ["a", "x" * 1000], [[1], [1] * 256]]
    for prompts in several:
        error = await live.refused("/v1/completions", {"prompt": prompts})
        assert error["param"] == "prompt" and error["message"].startswith("prompt[1]: has ")
