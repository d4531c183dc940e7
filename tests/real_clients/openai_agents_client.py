"""Run in an environment with `openai-agents`: an agent calls a tool in three turns, whole by chats, then streamed by
responses, and is asked once more."""

import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

ASKED = "How warm is it in Graz, Wien and Linz?"


@function_tool
def weather(city: str) -> str:
    """Tells it.

    Args:
        city: Its name.
    """
    return f"20 degrees in {city}"


async def main(url: str) -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    chats = Agent("chats", tools=[weather], model=OpenAIChatCompletionsModel("long", client))
    whole = await Runner.run(chats, ASKED)
    responses = Agent("responses", tools=[weather], model=OpenAIResponsesModel("long", client))
    streamed = Runner.run_streamed(responses, ASKED)
    async for _ in streamed.stream_events():
        pass
    again = await Runner.run(responses, [*streamed.to_input_list(), {"role": "user", "content": "Again."}])
    assert whole.final_output == streamed.final_output == again.final_output
    print(again.final_output)


asyncio.run(main(sys.argv[1]))
