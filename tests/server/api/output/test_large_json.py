"""Large replies, encoded in a thread, are the replies that small ones are."""

from typing import Any

import pytest

from server.api.output import sse as sse_module
from tests.server.live import Live, chat_body

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat_body(n=2, logprobs=True, top_logprobs=2, prompt_logprobs=1, seed=1),
    "/v1/completions": {"prompt": ["Hi", "you"], "logprobs": 2, "echo": True, "max_tokens": 4, "seed": 1},
    "/v1/responses": {"input": "Hi", "top_logprobs": 2, "seed": 1},
    "/tokenize": {"prompt": "a b", "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2]},
}
CHANGING = ("id", "created", "created_at", "metrics", "item_id")


def lasting(value: Any) -> Any:
    """A reply without what differs from one call to the next."""
    if isinstance(value, dict):
        return {name: lasting(inner) for name, inner in value.items() if name not in CHANGING}
    return [lasting(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", BODIES)
async def test_a_reply_says_the_same_whatever_it_weighs(live: Live, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, small = await live.post(path, BODIES[path])
    monkeypatch.setattr(sse_module, "LARGE", 0)
    status, large = await live.post(path, BODIES[path])
    assert (status, lasting(large)) == (200, lasting(small))


async def test_a_stream_says_the_same_whatever_it_weighs(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"prompt": "Hi", "logprobs": 2, "echo": True, "seed": 1}
    small = told(await live.stream("/v1/completions", body))
    monkeypatch.setattr(sse_module, "LARGE", 0)
    assert told(await live.stream("/v1/completions", body)) == small


def told(events: list[Any]) -> dict[str, Any]:
    """All that a stream tells, whichever of its tokens came together."""
    choices = [choice for event in events for choice in event["choices"]]
    lists = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    joined = {name: [item for one in lists for item in one[name]] for name in lists[0]}
    return joined | {"text": "".join(choice["text"] for choice in choices)}
