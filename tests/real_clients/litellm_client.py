"""Run in an environment with `litellm`: prints as JSON what it makes of a server's answers."""

import json
import sys

from litellm import Timeout, completion, stream_chunk_builder
from openai import APIStatusError
from wanted import MESSAGES, SCHEMA, SOON, STALLED, TOOL, find_statuses, read_scored, times_out


def main(url: str, crowded: str) -> None:
    common = {
        "model": "openai/fake",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": MESSAGES,
        "max_retries": 0,
    }
    tools = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True}

    def ask(**fields: object) -> object:
        return completion(**common | fields)

    def ask_wrongly(model: str = "fake", **fields: object) -> object:
        return ask(model=f"openai/{model}", **fields)

    summed = stream_chunk_builder(list(ask(**tools, stream=True)))
    scored = ask(logprobs=True, top_logprobs=2).model_dump()["choices"][0]["logprobs"]["content"]
    told = {
        "tools": [one.function.arguments for one in ask(**tools).choices[0].message.tool_calls],
        "streamed tools": [one.function.arguments for one in summed.choices[0].message.tool_calls],
        "text": ask().choices[0].message.content,
        "streamed text": "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True)),
        "schema": ask(response_format=SCHEMA).choices[0].message.content,
        "n": [one.message.content for one in ask(n=2).choices],
        "logprobs": read_scored(scored),
        "errors": find_statuses(ask_wrongly, APIStatusError),
        "time-out": times_out(lambda: ask(messages=STALLED, timeout=SOON), Timeout),
        "retry": ask(api_base=f"{crowded}/v1", max_retries=2).choices[0].message.content,
    }
    print(json.dumps(told))


main(*sys.argv[1:3])
