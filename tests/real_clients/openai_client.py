"""Run in an environment with `openai`: prints as JSON what that client makes of a server's answers."""

import json
import sys

from openai import APIStatusError, APITimeoutError, OpenAI
from wanted import MESSAGES, SCHEMA, SOON, STALLED, TOOL, find_statuses, read_scored, times_out


def main(url: str, crowded: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    patient = OpenAI(base_url=f"{crowded}/v1", api_key="none", max_retries=2, timeout=60)
    hasty = client.with_options(timeout=SOON)
    common = {"model": "fake", "messages": MESSAGES}
    tools = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True}

    def ask(**fields: object) -> object:
        return client.chat.completions.create(**common | fields)

    with client.chat.completions.stream(**common, **tools) as stream:
        for _ in stream:
            pass
        summed = stream.get_final_completion().choices[0].message.tool_calls
    told = {
        "tools": [one.function.arguments for one in ask(**tools).choices[0].message.tool_calls],
        "streamed tools": [one.function.arguments for one in summed],
        "text": ask().choices[0].message.content,
        "streamed text": "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True)),
        "schema": ask(response_format=SCHEMA).choices[0].message.content,
        "n": [one.message.content for one in ask(n=2).choices],
        "logprobs": read_scored(ask(logprobs=True, top_logprobs=2).model_dump()["choices"][0]["logprobs"]["content"]),
        "errors": find_statuses(ask, APIStatusError),
        "time-out": times_out(lambda: hasty.chat.completions.create(model="fake", messages=STALLED), APITimeoutError),
        "retry": patient.chat.completions.create(**common).choices[0].message.content,
    }
    print(json.dumps(told))


main(*sys.argv[1:3])
