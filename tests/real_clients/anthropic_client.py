"""Run in an environment with `anthropic`: prints as JSON what that client makes of a server's answers."""

from __future__ import annotations

import json
import sys

from anthropic import Anthropic, BadRequestError, NotFoundError
from wanted import MESSAGES, TOOL


def main(url: str) -> None:
    client = Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
    common = {"model": "fake", "messages": MESSAGES, "max_tokens": 1000}
    function = TOOL["function"]
    tool = {"name": function["name"], "input_schema": function["parameters"]}
    tools = {"tools": [tool], "tool_choice": {"type": "any"}}
    with client.messages.stream(**common, **tools) as stream:
        summed = stream.get_final_message()
    with client.messages.stream(**common) as stream:
        said = "".join(stream.text_stream)
    whole = client.messages.create(**common)
    counted = client.messages.count_tokens(model="fake", messages=MESSAGES)
    assert counted.input_tokens == whole.usage.input_tokens
    for wrong, error in (({"model": "other"}, NotFoundError), ({"max_tokens": 10**6}, BadRequestError)):
        try:
            client.messages.create(**common | wrong)
        except error as caught:
            assert caught.request_id and caught.body["error"]["message"]
        else:
            raise AssertionError(f"{wrong} was taken")
    told = {
        "tools": inputs(client.messages.create(**common, **tools)),
        "streamed tools": inputs(summed),
        "text": whole.content[0].text,
        "streamed text": said,
    }
    print(json.dumps(told))


def inputs(message: object) -> list[str]:
    """The input of each call, as JSON."""
    return [json.dumps(block.input) for block in message.content if block.type == "tool_use"]


main(sys.argv[1])
