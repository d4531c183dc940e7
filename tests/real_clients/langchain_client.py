"""Run in an environment with `langchain-openai`: prints as JSON what it makes of a server's answers."""

import json

from langchain_core.messages import convert_to_messages
from langchain_openai import ChatOpenAI
from openai import APIStatusError, APITimeoutError
from wanted import CITY, MESSAGES, SOON, STALLED, TOOL, find_statuses, read_scored, tell, times_out


def main(url: str, crowded: str) -> dict[str, object]:
    def make(**fields: object) -> ChatOpenAI:
        common = {"base_url": f"{url}/v1", "api_key": "none", "model": "fake", "max_retries": 0}
        return ChatOpenAI(**common | fields)

    model = make()
    bound = model.bind_tools([TOOL], tool_choice="required", parallel_tool_calls=True)
    summed = None
    for chunk in bound.stream(MESSAGES):
        summed = chunk if summed is None else summed + chunk
    assert not summed.invalid_tool_calls, summed.invalid_tool_calls
    pair = make(n=2).generate([convert_to_messages(MESSAGES)])
    structured = model.with_structured_output({"title": "weather", **CITY}, method="json_schema")
    scored = make(logprobs=True, top_logprobs=2).invoke(MESSAGES).response_metadata["logprobs"]["content"]
    return {
        "tools": [json.dumps(one["args"]) for one in bound.invoke(MESSAGES).tool_calls],
        "streamed tools": [json.dumps(one["args"]) for one in summed.tool_calls],
        "text": model.invoke(MESSAGES).content,
        "streamed text": "".join(chunk.content for chunk in model.stream(MESSAGES)),
        "schema": json.dumps(structured.invoke(MESSAGES)),
        "n": [one.text for one in pair.generations[0]],
        "logprobs": read_scored(scored),
        "errors": find_statuses(lambda **wrong: make(**wrong).invoke(MESSAGES), APIStatusError),
        "time-out": times_out(lambda: make(timeout=SOON).invoke(STALLED), APITimeoutError),
        "retry": make(base_url=f"{crowded}/v1", max_retries=2).invoke(MESSAGES).content,
    }


tell(main)
