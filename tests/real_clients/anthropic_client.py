"""Run in an environment with `anthropic`: prints as JSON what that client makes of a server's answers."""

import json

from anthropic import Anthropic, APIStatusError, APITimeoutError
from wanted import MESSAGES, SOON, STALLED, TOOL, find_statuses, tell, times_out


def main(url: str, crowded: str) -> dict[str, object]:
    client = Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
    patient = Anthropic(base_url=crowded, api_key="none", max_retries=2, timeout=60)
    common = {"model": "fake", "messages": MESSAGES, "max_tokens": 1000}
    function = TOOL["function"]
    tool = {"name": function["name"], "input_schema": function["parameters"]}
    tools = {"tools": [tool], "tool_choice": {"type": "any"}}

    def ask(**fields: object) -> object:
        try:
            return client.messages.create(**common | fields)
        except APIStatusError as error:
            assert error.request_id and error.body["error"]["message"]
            raise

    with client.messages.stream(**common, **tools) as stream:
        summed = stream.get_final_message()
    with client.messages.stream(**common) as stream:
        said = "".join(stream.text_stream)
    whole = ask()
    counted = client.messages.count_tokens(model="fake", messages=MESSAGES)
    assert counted.input_tokens == whole.usage.input_tokens
    return {
        "tools": inputs(ask(**tools)),
        "streamed tools": inputs(summed),
        "text": whole.content[0].text,
        "streamed text": said,
        "errors": find_statuses(ask, APIStatusError),
        "time-out": times_out(lambda: ask(messages=STALLED, timeout=SOON), APITimeoutError),
        "retry": patient.messages.create(**common).content[0].text,
    }


def inputs(message: object) -> list[str]:
    """The input of each call, as JSON."""
    return [json.dumps(block.input) for block in message.content if block.type == "tool_use"]


tell(main)
