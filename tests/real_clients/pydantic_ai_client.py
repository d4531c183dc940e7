"""Run in an environment with `pydantic-ai-slim[openai]`: prints as JSON what it makes of a server's answers."""

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent, ModelAPIError, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings as Settings
from pydantic_ai.providers.openai import OpenAIProvider
from wanted import MESSAGES, SOON, STALLED, find_statuses, read_scored, tell, times_out

QUESTION = MESSAGES[0]["content"]


class Weather(BaseModel):
    """The tool of this output has the schema of the other clients' tool."""

    city: str
    days: int


def make(url: str, model: str = "fake") -> OpenAIChatModel:
    return OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


async def read_streams(url: str) -> tuple[Weather, str]:
    """What a tool is called with, and what is said."""
    async with Agent(make(url), output_type=ToolOutput(Weather, name="Weather")).run_stream(QUESTION) as run:
        last = await run.get_output()
    async with Agent(make(url)).run_stream(QUESTION) as run:
        return last, "".join([piece async for piece in run.stream_text(delta=True)])


def main(url: str, crowded: str) -> dict[str, object]:
    def ask(question: str = QUESTION, model: str = "fake", output: object = str, **fields: object) -> object:
        return Agent(make(url, model), output_type=output).run_sync(question, model_settings=Settings(**fields))

    last, said = asyncio.run(read_streams(url))
    scored = ask(openai_logprobs=True, openai_top_logprobs=2).all_messages()[-1].provider_details["logprobs"]
    return {
        "tools": [ask(output=ToolOutput(Weather, name="Weather")).output.model_dump_json()],
        "streamed tools": [last.model_dump_json()],
        "text": ask().output,
        "streamed text": said,
        "schema": ask(output=NativeOutput(Weather)).output.model_dump_json(),
        "logprobs": read_scored(scored),
        "errors": find_statuses(ask, ModelHTTPError),
        "time-out": times_out(lambda: ask(STALLED[0]["content"], timeout=SOON), ModelAPIError),
        "retry": Agent(make(crowded)).run_sync(QUESTION).output,
    }


tell(main)
