"""Run in an environment with `openai`: prints as JSON what that client makes of a server's answers."""

from __future__ import annotations

import json
import sys

from openai import OpenAI
from wanted import MESSAGES, TOOL


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    common = {"model": "fake", "messages": MESSAGES}
    tools = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True}
    whole = client.chat.completions.create(**common, **tools).choices[0].message.tool_calls
    with client.chat.completions.stream(**common, **tools) as stream:
        for _ in stream:
            pass
        summed = stream.get_final_completion().choices[0].message.tool_calls
    text = client.chat.completions.create(**common).choices[0].message.content
    streamed = client.chat.completions.create(**common, stream=True)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    told = {
        "tools": [one.function.arguments for one in whole],
        "streamed tools": [one.function.arguments for one in summed],
        "text": text,
        "streamed text": said,
    }
    print(json.dumps(told))


main(sys.argv[1])
