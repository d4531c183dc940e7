"""Run in an environment with `pydantic-ai-slim[openai]`: prints as JSON what it makes of a server's answers."""

import asyncio
import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, ModelAPIError, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider
from wanted import MESSAGES, SOON, STALLED, WRONG, read_scored


class Weather(BaseModel):
    """The tool of this output has the schema of the other clients' tool."""

    city: str
    days: int


def make(url: str, model: str = "fake") -> OpenAIChatModel:
    return OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


async def find_statuses(url: str, question: str) -> list[int]:
    found = []
    for wrong in WRONG:
        fields = dict(wrong)
        agent = Agent(make(url, fields.pop("model", "fake")))
        try:
            await agent.run(question, model_settings=OpenAIChatModelSettings(**fields))
        except ModelHTTPError as error:
            found.append(error.status_code)
    return found


async def times_out(url: str) -> bool:
    try:
        await Agent(make(url)).run(STALLED[0]["content"], model_settings=OpenAIChatModelSettings(timeout=SOON))
    except ModelAPIError:
        return True
    return False


async def main(url: str, crowded: str) -> None:
    model = make(url)
    question = MESSAGES[0]["content"]
    agent = Agent(model, output_type=ToolOutput(Weather, name="Weather"))
    whole = await agent.run(question)
    async with agent.run_stream(question) as run:
        last = await run.get_output()
    native = await Agent(model, output_type=NativeOutput(Weather)).run(question)
    plain = Agent(model)
    async with plain.run_stream(question) as run:
        said = "".join([piece async for piece in run.stream_text(delta=True)])
    scores = OpenAIChatModelSettings(openai_logprobs=True, openai_top_logprobs=2)
    scored = (await plain.run(question, model_settings=scores)).all_messages()[-1].provider_details["logprobs"]
    told = {
        "tools": [whole.output.model_dump_json()],
        "streamed tools": [last.model_dump_json()],
        "text": (await plain.run(question)).output,
        "streamed text": said,
        "schema": native.output.model_dump_json(),
        "logprobs": read_scored(scored),
        "errors": await find_statuses(url, question),
        "time-out": await times_out(url),
        "retry": (await Agent(make(crowded)).run(question)).output,
    }
    print(json.dumps(told))


asyncio.run(main(*sys.argv[1:3]))
