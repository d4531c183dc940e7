"""The calls that every client makes; beside the programs that import it, which run without the rest of the tree."""

import json
import sys
from collections.abc import Callable
from typing import Any

MESSAGES = [{"role": "user", "content": "What is the weather in Graz?"}]
STALLED = [{"role": "user", "content": "Never end."}]
"""The answer to this begins, and does not go on."""
SOON = 1.0
"""Seconds that a client waits for it."""
AT_ONCE = (64, 256)
"""Requests under way at a time, of a load generator."""
WRONG = ({"model": "other"}, {"max_tokens": 2**63})  # less is cut to what the context leaves
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "Weather", "description": "Tells it.", "parameters": CITY}}
CALLING = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "weather", "schema": CITY, "strict": True}}


def find_statuses(ask: Callable[..., object], error: Any) -> list[int]:
    """HTTP status of the error, of this class, that each wrong call raises."""
    found = []
    for wrong in WRONG:
        try:
            ask(**wrong)
        except error as caught:
            found.append(caught.status_code)
    return found


def times_out(ask: Callable[[], object], error: type[Exception]) -> bool:
    """Whether a call is given up by this error."""
    try:
        ask()
    except error:
        return True
    return False


def read_scored(scored: list[dict[str, Any]]) -> str:
    """The text of tokens that have come with their log-probabilities."""
    assert all(one["logprob"] < 0 and len(one["top_logprobs"]) == 2 for one in scored)
    return bytes(byte for one in scored for byte in one["bytes"]).decode()


def read_chats(ask: Callable[..., Any]) -> dict[str, object]:
    """What calls come to whose answers have the form of OpenAI's."""
    scored = ask(logprobs=True, top_logprobs=2).model_dump()["choices"][0]["logprobs"]["content"]
    return {
        "tools": [one.function.arguments for one in ask(**CALLING).choices[0].message.tool_calls],
        "text": ask().choices[0].message.content,
        "streamed text": "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True)),
        "schema": ask(response_format=SCHEMA).choices[0].message.content,
        "n": [one.message.content for one in ask(n=2).choices],
        "logprobs": read_scored(scored),
    }


def tell(look: Callable[[str, str], dict[str, object]]) -> None:
    """Print as JSON what a client makes of the two servers whose URLs the command line has."""
    print(json.dumps(look(*sys.argv[1:3])))
