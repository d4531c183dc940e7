"""Run in an environment with `instructor`: prints as JSON what it makes of a server's answers, in each of its modes."""

from collections.abc import Iterable

import instructor
from instructor import Mode
from instructor.core import InstructorRetryException
from openai import OpenAI
from pydantic import BaseModel
from wanted import MESSAGES, SOON, STALLED, tell, times_out

WITH_TOOLS = (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.RESPONSES_TOOLS)
WITH_JSON = (Mode.JSON_SCHEMA, Mode.JSON, Mode.MD_JSON, Mode.JSON_O1)


class Weather(BaseModel):
    """The tool that instructor makes of this has the schema of the other clients' tool."""

    city: str
    days: int


def main(url: str, crowded: str) -> dict[str, object]:
    plain = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    common = {"model": "fake", "messages": MESSAGES, "response_model": Weather, "max_retries": 0}

    def ask(mode: Mode) -> str:
        return instructor.from_openai(plain, mode=mode).chat.completions.create(**common).model_dump_json()

    client = instructor.from_openai(plain, mode=Mode.TOOLS)
    *_, last = client.chat.completions.create_partial(**common)
    with_tools, with_json = {ask(mode) for mode in WITH_TOOLS}, {ask(mode) for mode in WITH_JSON}
    (tools,), (schema,) = with_tools, with_json  # every mode says the same
    parallel = instructor.from_openai(plain, mode=Mode.PARALLEL_TOOLS).chat.completions
    several = common | {"response_model": Iterable[Weather]}
    assert [one.model_dump_json() for one in parallel.create(**several)] == [tools]
    hasty = instructor.from_openai(plain.with_options(timeout=SOON)).chat.completions
    patient = instructor.from_openai(OpenAI(base_url=f"{crowded}/v1", api_key="none", max_retries=2))
    return {
        "tools": [tools],
        "streamed tools": [last.model_dump_json()],
        "schema": schema,
        "time-out": times_out(lambda: hasty.create(**common | {"messages": STALLED}), InstructorRetryException),
        "retry": patient.chat.completions.create(**common).model_dump_json(),
    }


tell(main)
