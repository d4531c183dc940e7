"""Run in an environment with `llm`: prints as JSON what that program makes of a server's answers."""

from __future__ import annotations

import json
import sys

import llm
from llm.default_plugins.openai_models import Chat
from wanted import CITY, MESSAGES


def main(url: str) -> None:
    model = Chat("fake", api_base=f"{url}/v1", key="none", supports_tools=True, supports_schema=True)
    question = MESSAGES[0]["content"]
    tools = {"tools": [llm.Tool(name="Weather", description="Tells it.", input_schema=CITY)]}

    def call(stream: bool) -> list[str]:
        return [json.dumps(one.arguments) for one in model.prompt(question, stream=stream, **tools).tool_calls()]

    told = {
        "tools": call(False),
        "streamed tools": call(True),
        "text": model.prompt(question, stream=False).text(),
        "streamed text": "".join(model.prompt(question, stream=True)),
        "schema": model.prompt(question, schema=CITY, stream=False).text(),
    }
    print(json.dumps(told))


main(sys.argv[1])
