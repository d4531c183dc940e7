"""Run in an environment with `langchain-openai`: prints as JSON what it makes of a server's answers."""

from __future__ import annotations

import json
import sys

from langchain_openai import ChatOpenAI
from wanted import MESSAGES, TOOL


def main(url: str) -> None:
    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="fake")
    bound = model.bind_tools([TOOL], tool_choice="required", parallel_tool_calls=True)
    summed = None
    for chunk in bound.stream(MESSAGES):
        summed = chunk if summed is None else summed + chunk
    assert not summed.invalid_tool_calls, summed.invalid_tool_calls
    told = {
        "tools": [json.dumps(one["args"]) for one in bound.invoke(MESSAGES).tool_calls],
        "streamed tools": [json.dumps(one["args"]) for one in summed.tool_calls],
        "text": model.invoke(MESSAGES).content,
        "streamed text": "".join(chunk.content for chunk in model.stream(MESSAGES)),
    }
    print(json.dumps(told))


main(sys.argv[1])
