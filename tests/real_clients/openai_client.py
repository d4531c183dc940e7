"""Run in an environment with `openai`: prints as JSON what that client makes of a server's answers."""

from openai import APIStatusError, APITimeoutError, OpenAI
from wanted import CALLING, MESSAGES, SOON, STALLED, find_statuses, read_chats, tell, times_out


def main(url: str, crowded: str) -> dict[str, object]:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    patient = OpenAI(base_url=f"{crowded}/v1", api_key="none", max_retries=2, timeout=60)
    hasty = client.with_options(timeout=SOON)
    common = {"model": "fake", "messages": MESSAGES}

    def ask(**fields: object) -> object:
        return client.chat.completions.create(**common | fields)

    with client.chat.completions.stream(**common, **CALLING) as stream:
        for _ in stream:
            pass
        summed = stream.get_final_completion().choices[0].message.tool_calls
    return {
        **read_chats(ask),
        "streamed tools": [one.function.arguments for one in summed],
        "errors": find_statuses(ask, APIStatusError),
        "time-out": times_out(lambda: hasty.chat.completions.create(model="fake", messages=STALLED), APITimeoutError),
        "retry": patient.chat.completions.create(**common).choices[0].message.content,
    }


tell(main)
