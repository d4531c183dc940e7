"""Run in an environment with `litellm`: prints as JSON what it makes of a server's answers."""

from __future__ import annotations

import json
import sys

from litellm import completion, stream_chunk_builder
from wanted import MESSAGES, TOOL


def main(url: str) -> None:
    common = {
        "model": "openai/fake",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": MESSAGES,
    }
    tools = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True}
    summed = stream_chunk_builder(list(completion(**common, **tools, stream=True)))
    told = {
        "tools": [one.function.arguments for one in completion(**common, **tools).choices[0].message.tool_calls],
        "streamed tools": [one.function.arguments for one in summed.choices[0].message.tool_calls],
        "text": completion(**common).choices[0].message.content,
        "streamed text": "".join(chunk.choices[0].delta.content or "" for chunk in completion(**common, stream=True)),
    }
    print(json.dumps(told))


main(sys.argv[1])
