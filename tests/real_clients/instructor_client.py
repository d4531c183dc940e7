"""Run in an environment with `instructor`: prints as JSON what it makes of a server's answers."""

from __future__ import annotations

import json
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel
from wanted import MESSAGES


class Weather(BaseModel):
    """The tool that instructor makes of this has the schema of the other clients' tool."""

    city: str
    days: int


def main(url: str) -> None:
    plain = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    common = {"model": "fake", "messages": MESSAGES}
    whole = client.chat.completions.create(response_model=Weather, max_retries=0, **common)
    *_, last = client.chat.completions.create_partial(response_model=Weather, max_retries=0, **common)
    told = {"tools": [whole.model_dump_json()], "streamed tools": [last.model_dump_json()]}
    print(json.dumps(told))


main(sys.argv[1])
