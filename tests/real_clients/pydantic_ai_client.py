"""Run in an environment with `pydantic-ai-slim[openai]`: prints as JSON what it makes of a server's answers."""

from __future__ import annotations

import asyncio
import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from wanted import MESSAGES


class Weather(BaseModel):
    """The tool of this output has the schema of the other clients' tool."""

    city: str
    days: int


async def main(url: str) -> None:
    model = OpenAIChatModel("fake", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    question = MESSAGES[0]["content"]
    agent = Agent(model, output_type=ToolOutput(Weather, name="Weather"))
    whole = await agent.run(question)
    async with agent.run_stream(question) as run:
        last = await run.get_output()
    native = await Agent(model, output_type=NativeOutput(Weather)).run(question)
    plain = Agent(model)
    async with plain.run_stream(question) as run:
        said = "".join([piece async for piece in run.stream_text(delta=True)])
    told = {
        "tools": [whole.output.model_dump_json()],
        "streamed tools": [last.model_dump_json()],
        "text": (await plain.run(question)).output,
        "streamed text": said,
        "schema": native.output.model_dump_json(),
    }
    print(json.dumps(told))


asyncio.run(main(sys.argv[1]))
