"""Clients that others have written, each version in an environment of its own, read what a server answers.

Two versions of `openai` cannot be in one environment, and litellm takes another than LangChain, so each environment is
made with pip below .venv and kept. That takes minutes and needs PyPI, so it happens only where it is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
import venv
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from engine.messages import FinishReason, RowSpec, RowUpdate
from server.api.limits import Limits
from tests.server.fakes import ANSWER, END, answer
from tests.server.live import Live, live_server

ASKED = "LENGTHWISE_TEST_CLIENTS"
HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
RANGES = {one.partition(">")[0]: one for one in PROJECT["optional-dependencies"]["clients"]}
"""The versions of each client that are claimed to work."""


@dataclass(frozen=True, slots=True)
class Client:
    """A program beside this file, what pip installs for it, and how many calls of an answer it takes."""

    program: str
    requirements: tuple[str, ...]
    calls: int = 2


CLIENTS: Mapping[str, Client] = MappingProxyType(
    {
        "openai-oldest": Client("openai_client.py", (RANGES["openai"].partition(",")[0].replace(">=", "=="),)),
        "openai-2": Client("openai_client.py", (RANGES["openai"] + ",<3",)),
        "openai-newest": Client("openai_client.py", (RANGES["openai"],)),
        "anthropic": Client("anthropic_client.py", (RANGES["anthropic"],)),
        "langchain": Client("langchain_client.py", (RANGES["langchain-openai"],)),
        "litellm": Client("litellm_client.py", (RANGES["litellm"], "mcp")),  # which it imports where there are tools
        "instructor": Client("instructor_client.py", (RANGES["instructor"],), calls=1),
    }
)

pytestmark = [
    pytest.mark.skipif(ASKED not in os.environ, reason="installs clients from PyPI: run `make test-clients`"),
    pytest.mark.timeout(600),  # for an installation
]

ARGUMENTS = [{"city": "Graz", "days": 2}, {"city": "Wien", "days": 1}]


def called(count: int) -> Iterable[str]:
    """An answer that calls a tool, in pieces that end within arguments, and some calls begin where others end."""
    text = "\n".join(
        f'<tool_call>\n{{"name": "Weather", "arguments": {json.dumps(one)}}}\n</tool_call>' for one in ARGUMENTS[:count]
    )
    begun = text.index("Graz") + 2
    return text[:begun], text[begun : begun + 9], text[begun + 9 :]


async def ask(live: Live, name: str) -> Any:
    """What a client's program prints."""
    client = CLIENTS[name]

    def script(row: RowSpec) -> Iterable[RowUpdate]:
        if row.sampling.grammar is None:
            yield from answer(row)
            return
        for piece in called(client.calls):
            yield RowUpdate(row.row_id, tuple(piece.encode()), piece)
        yield RowUpdate(row.row_id, (END,), finish_reason=FinishReason.STOP)

    live.dispatcher.script = script
    python = interpreter(name, client.requirements)
    environment = {"PATH": os.defpath, "HOME": str(python.parents[1]), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = (python, HERE / client.program, live.url)
    process = await create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=environment)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out.splitlines()[-1])


@pytest.fixture
async def live(pool: ThreadPoolExecutor) -> AsyncIterator[Live]:
    """With a context that the words about tools fit into."""
    async with live_server(pool, Limits(), context_length=4096) as live:
        yield live


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_gets_tool_calls_and_text_streamed_as_it_gets_them_whole(live: Live, name: str) -> None:
    told = await ask(live, name)
    wanted = ARGUMENTS[: CLIENTS[name].calls]
    assert [json.loads(one) for one in told["tools"]] == wanted
    assert [json.loads(one) for one in told["streamed tools"]] == wanted
    assert told.get("text", ANSWER) == told.get("streamed text", ANSWER) == ANSWER


def interpreter(name: str, requirements: tuple[str, ...]) -> Path:
    """The interpreter of an environment that holds what is required, made or updated; skips where pip cannot."""
    folder = Path(os.environ[ASKED]) / name
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    flags = ["--quiet", "--disable-pip-version-check", "--no-input", "--upgrade"]
    done = subprocess.run([python, "-m", "pip", "install", *flags, *requirements], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{name} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return python
