"""Run in an environment with `llm`: prints as JSON what that program makes of a server's answers."""

import json

import llm
from llm.default_plugins.openai_models import Chat
from openai import APIStatusError
from wanted import CITY, MESSAGES, find_statuses, tell


def main(url: str, crowded: str) -> dict[str, object]:
    def make(model: str = "fake", url: str = url) -> Chat:
        return Chat(model, api_base=f"{url}/v1", key="none", supports_tools=True, supports_schema=True)

    def ask_wrongly(model: str = "fake", **fields: object) -> str:
        return make(model).prompt(question, stream=False, **fields).text()

    model = make()
    question = MESSAGES[0]["content"]
    tools = {"tools": [llm.Tool(name="Weather", description="Tells it.", input_schema=CITY)]}

    def call(stream: bool) -> list[str]:
        return [json.dumps(one.arguments) for one in model.prompt(question, stream=stream, **tools).tool_calls()]

    return {
        "tools": call(False),
        "streamed tools": call(True),
        "text": model.prompt(question, stream=False).text(),
        "streamed text": "".join(model.prompt(question, stream=True)),
        "errors": find_statuses(ask_wrongly, APIStatusError),
        "retry": make(url=crowded).prompt(question, stream=False).text(),
        "schema": model.prompt(question, schema=CITY, stream=False).text(),
    }


tell(main)
