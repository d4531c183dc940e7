"""Programs at their defaults, three turns with a tool, against a real server of a small network with a long context.

Where that is asked for, what was found becomes the second table of docs/clients.md. What each program sent stays in
its environment, as `sent.jsonl`.
"""

import asyncio
import base64
import json
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE, create_subprocess_exec
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.real_clients.environments import ASKED, HEAVY, make_node, make_python, node_version, python_version, tabled
from tests.real_clients.programs import PROGRAMS, Program
from tests.real_clients.scripted import Exchange, build_long, recorded, scripted_server
from tests.server.api.programs.agents import PICTURE

HERE = Path(__file__).parent
HEADS = ("program", "version", "requests", "longest prompt, in tokens", "what it sends that is unusual")
PATIENCE = 240.0  # seconds for all its turns
LOOPBACK = {"NO_PROXY": "127.0.0.1", "HTTPS_PROXY": "http://127.0.0.1:9"}  # what is sent to others goes nowhere

pytestmark = [
    pytest.mark.skipif(HEAVY not in os.environ, reason="installs programs for minutes: run `make docs-clients`"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, list[str]]]:
    with tabled(HEADS) as rows:
        yield rows


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_long(tmp_path_factory.mktemp("models") / "long")


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_goes_through_its_turns(
    name: str, network: Path, tmp_path: Path, table: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, environment = PROGRAMS[name], Path(os.environ[ASKED]) / PROGRAMS[name].package
    make, read_version = (make_node, node_version) if program.is_node else (make_python, python_version)
    found = make(environment, program.requirements)
    script = replace(program.script, answers=tuple(fill(one, folder=tmp_path) for one in program.script.answers))
    async with scripted_server(network, script, monkeypatch) as (url, prompts), recorded(url) as recorder:
        written = set_up(program, environment, url=recorder.own, folder=tmp_path, model=network)
        ended = [await run(one, program, found, written, tmp_path) for one in (program.command, program.again) if one]
    asked = [one for one in recorder.kept if one.method == "POST"]
    (environment / "sent.jsonl").write_bytes(b"".join(one.body + b"\n" for one in asked))
    assert [(one.path, one.status, one.answer) for one in asked if one.status != 200] == []
    for status, output in ended:
        assert status == 0 and program.shows in output, output
    for one in asked:
        check_whole(one)
    assert max(text.count(script.mark) for text, _ in prompts) == program.results
    for fields in program.sends:
        assert any(fields.items() <= one.json.items() for one in asked), fields
    version, longest = read_version(environment, program.package), max(length for _, length in prompts)
    table[name] = [name, version, str(len(asked)), f"{longest:,}", program.unusual]


def fill(text: str, **places: object) -> str:
    for name, value in places.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def set_up(program: Program, environment: Path, *, url: str, folder: Path, model: Path) -> Callable[[str], str]:
    """Write the program's files; returns what fills in its other texts."""

    def written(text: str) -> str:
        return fill(text, url=url, folder=folder, model=model)

    (folder / "note.txt").write_text("A note.\n")
    (folder / "dot.png").write_bytes(base64.b64decode(PICTURE))
    for name, text in program.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(written(text))
    if program.beside is not None:
        shutil.copy(HERE / program.beside, folder)
        if program.is_node:
            (folder / "node_modules").symlink_to(environment / "node_modules")
    return written


async def run(
    command: Sequence[str], program: Program, found: Path, written: Callable[[str], str], folder: Path
) -> tuple[int | None, str]:
    """Exit status and output of the program's command, which is killed with all its own where it takes too long."""
    node = Path(shutil.which("node") or os.devnull).parent
    environment = {"PATH": f"{found}:{node}:{os.defpath}", "HOME": str(folder), **LOOPBACK}
    environment |= {key: written(value) for key, value in program.environment.items()}
    path = shutil.which(command[0], path=environment["PATH"])
    assert path is not None, f"{command[0]} has not been installed"
    pipes: dict[str, Any] = {"stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE, "start_new_session": True}
    process = await create_subprocess_exec(path, *map(written, command[1:]), cwd=folder, env=environment, **pipes)
    try:
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, (out + err).decode(errors="replace")


LAST = ('"type":"response.completed"', '"type":"message_stop"', "[DONE]")  # in the last event of a stream, by API


def check_whole(exchange: Exchange) -> None:
    """Assert that the answer is JSON, or a stream that ends as its API has it, with no error in it."""
    if not exchange.content_type.startswith("text/event-stream"):
        assert "error" not in {key for key, value in json.loads(exchange.answer).items() if value is not None}
        return
    frames = [frame for frame in exchange.answer.decode().split("\n\n") if frame and not frame.startswith(":")]
    data = [frame.rpartition("data: ")[2] for frame in frames]
    assert exchange.answer.endswith(b"\n\n") and any(last in data[-1] for last in LAST)
    events = [json.loads(one) for one in data if one != "[DONE]"]
    assert all(event.get("type") != "error" and event.get("error") is None for event in events)
