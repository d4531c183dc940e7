"""POST /v1/chat/completions, whole and streamed."""

from server.api.output.reply import FINGERPRINT
from tests.server.fakes import ANSWER, FakeText
from tests.server.live import Live, prompt_of, text_of, usage_of


async def test_a_whole_answer_has_every_field_of_the_api(live: Live) -> None:
    reply = await live.chat(model="fake")
    metrics, created = reply.pop("metrics"), reply.pop("created")
    assert reply.pop("id").startswith("chatcmpl-")
    assert created > 1_700_000_000
    prompt, completion = len(FakeText().encode("user:Hi\nassistant:")), len(ANSWER.encode()) + 1
    ended = {"logprobs": None, "finish_reason": "stop", "stop_reason": None}
    choice = {"index": 0, "message": {"role": "assistant", "content": ANSWER}, **ended}
    told = {"object": "chat.completion", "model": "fake", "choices": [choice], "usage": usage_of(prompt, completion)}
    assert reply == told | {"system_fingerprint": FINGERPRINT, "prompt_logprobs": None}
    assert set(metrics) == {"queue_time_ms", "time_to_first_token_ms", "generation_time_ms", "predicted_tokens"}
    assert metrics.pop("predicted_tokens") is None  # nobody predicts here
    assert all(value >= 0 for value in metrics.values())


async def test_the_model_answers_under_each_of_its_names_and_without_one(live: Live) -> None:
    replies = [await live.chat(model=name) for name in ("fake", "org/alias", None)]
    assert [reply["model"] for reply in replies] == ["fake", "org/alias", "fake"]


async def test_a_stream_tells_what_a_whole_answer_does_and_its_usage_in_a_chunk_of_its_own(live: Live) -> None:
    *events, last = await live.stream_chat(stream_options={"include_usage": True})
    whole = await live.chat()
    assert text_of(events) == ANSWER
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    (choices,) = zip(*(event["choices"] for event in events), strict=True)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(events) - 1) + ["stop"]
    assert choices[0]["delta"] == {"role": "assistant", "content": "G"}
    assert not any("role" in choice["delta"] for choice in choices[1:])
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert last["metrics"]["generation_time_ms"] >= 0
    assert not any("usage" in event for event in events)


async def test_usage_comes_in_every_chunk_when_asked_for(live: Live) -> None:
    events = await live.stream_chat(stream_options={"continuous_usage_stats": True})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == len(ANSWER.encode()) + 1


async def test_n_answers_come_in_the_order_of_their_index_with_seeds_that_follow_each_other(live: Live) -> None:
    reply = await live.chat(n=3, seed=-1)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert [request.sampling.seed for request in live.dispatcher.submitted] == [2**64 - 1, 0, 1]
    single = await live.chat()
    assert reply["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]
    assert reply["usage"]["completion_tokens"] == 3 * single["usage"]["completion_tokens"]
    await live.chat(n=4)
    assert len({request.sampling.seed for request in live.dispatcher.submitted[-4:]}) == 4, "without a seed"


async def test_logprobs_tell_token_bytes_and_alternatives_streamed_even_within_a_character(live: Live) -> None:
    reply = await live.chat(logprobs=True, top_logprobs=2)
    whole = reply["choices"][0]["logprobs"]["content"]
    best = {"token": "G", "logprob": -0.5, "bytes": [71]}
    assert whole[0] == {**best, "top_logprobs": [best, {"token": "H", "logprob": -1.5, "bytes": [72]}]}
    assert len(whole) == reply["usage"]["completion_tokens"]
    events = await live.stream_chat(logprobs=True, top_logprobs=2)
    assert [one for event in events for one in event["choices"][0]["logprobs"]["content"]] == whole


async def test_prompt_logprobs_are_keyed_by_token_id(live: Live) -> None:
    reply = await live.chat(prompt_logprobs=1)
    first, second, *_ = reply["prompt_logprobs"]
    told = {str(ord("s")): {"logprob": -0.5, "rank": 1, "decoded_token": "s"}}
    assert (first, second, len(reply["prompt_logprobs"])) == (None, told, reply["usage"]["prompt_tokens"])


async def test_text_parts_are_joined_and_developer_counts_as_system(live: Live) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = (("developer", "D"), ("user", parts), ("assistant", None), ("user", "c"))
    await live.chat(messages=[{"role": role, "content": content} for role, content in said])
    assert prompt_of(live) == "system:D\nuser:ab\nassistant:\nuser:c\nassistant:"


async def test_an_answer_may_go_on_with_the_assistants_last_turn(live: Live) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Gu"}]
    for generation in (False, None):
        await live.chat(messages=turns, continue_final_message=True, add_generation_prompt=generation)
        assert prompt_of(live) == "user:Hi\nassistant:Gu"


async def test_priority_and_a_deadline_from_the_arrival_on_reach_the_dispatcher_for_every_answer(live: Live) -> None:
    await live.chat(deadline_ms=2500, n=2, priority=-3)
    await live.chat()
    *asked, other = live.dispatcher.submitted
    assert [(one.priority, one.deadline) for one in asked] == [(-3, one.times.arrival + 2.5) for one in asked]
    assert (len(asked), other.priority, other.deadline) == (2, 0, None)
