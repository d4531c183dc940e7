"""Run in an environment with `litellm`: prints as JSON what it makes of a server's answers."""

from litellm import Timeout, completion, stream_chunk_builder
from openai import APIStatusError
from wanted import CALLING, MESSAGES, SOON, STALLED, find_statuses, read_chats, tell, times_out


def main(url: str, crowded: str) -> dict[str, object]:
    common = {"model": "openai/fake", "api_base": f"{url}/v1", "api_key": "none", "max_retries": 0}

    def ask(**fields: object) -> object:
        return completion(**common | {"messages": MESSAGES} | fields)

    def ask_wrongly(model: str = "fake", **fields: object) -> object:
        return ask(model=f"openai/{model}", **fields)

    summed = stream_chunk_builder(list(ask(**CALLING, stream=True)))
    return {
        **read_chats(ask),
        "streamed tools": [one.function.arguments for one in summed.choices[0].message.tool_calls],
        "errors": find_statuses(ask_wrongly, APIStatusError),
        "time-out": times_out(lambda: ask(messages=STALLED, timeout=SOON), Timeout),
        "retry": ask(api_base=f"{crowded}/v1", max_retries=2).choices[0].message.content,
    }


tell(main)
