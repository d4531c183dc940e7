"""Commands of README, index and tutorials do what they are there for: each is run as printed, or stands below with why
it is not. Those of all other documents have flags that exist."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from loadgen.experiments.engine import setup
from server.cli import main as cli
from tests.live_server import serve

ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "README.md", ROOT / "docs/index.md", *sorted(ROOT.glob("docs/tutorial-*.md")))
OTHERS = sorted({ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")} - {*DOCUMENTS})
ADDRESS = "http://127.0.0.1:8000"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # other programs may keep the cores busy

IN_A_CLONE = "test_tutorials.py runs it in a clone"
LEFT_OUT: Mapping[str, str] = {
    "make serve": "fetches the default models; the server of these tests is the same command with a tiny model",
    'make serve ARGS="~/models/Qwen2.5-0.5B-Instruct"': "the checkpoint is the reader's",
    'make serve ARGS="~/models/SmolLM2-360M-Q8_0.gguf"': "the file is the reader's",
    'make serve ARGS="Qwen/Qwen2.5-0.5B-Instruct"': "asks a model hub",
    "lengthwise arena": "takes minutes; test_grid.py plays one of its loads",
    "lengthwise arena --strategies my_order.py:MY_ORDER": "the same",
    "lengthwise strategy new my_order": IN_A_CLONE,
    "python -m pytest -c /dev/null --rootdir . test_my_order.py": IN_A_CLONE,
    "lengthwise simulate --cost cpu-smollm2-135m --max-num-seqs 8 --rate 1 --strategies my_order.py:MY_ORDER,"
    "baton-pd,lengthwise": IN_A_CLONE,
    "lengthwise simulate --cost cpu-smollm2-135m --max-num-seqs 8 --rate 1 --strategies baton-pd,"
    "lengthwise": IN_A_CLONE,
    "lengthwise whatif": "wants a day's journal; test_whatif.py writes one",
    "lengthwise bench grid": "takes minutes; test_grid.py plays some of its cells",
    "lengthwise bench gpu": "starts servers; test_command.py of its folder goes through the same dry run",
    "lengthwise compare --strategies vs,lengthwise,scls": "starts nine servers; test_compare_command.py three",
    "lengthwise compare --strategies baton-pd,my_order.py:MY_ORDER --num-prompts 60 --request-rates inf "
    "--max-output-len 128 --replay-lengths --serve-args='--max-num-seqs 8'": "starts six more",
}
"""Commands that are only parsed."""

SMALLER: Mapping[str, str] = {
    "lengthwise bench --base-url URL --request-rate 4": "--num-prompts 4 --max-input-len 100 --max-output-len 4",
    f"lengthwise bench --base-url {ADDRESS} --request-rate 4": (
        "--num-prompts 4 --max-input-len 100 --max-output-len 4"
    ),
    "lengthwise simulate --strategies scls,lengthwise": "--duration 20",
    "lengthwise simulate --cost cpu-smollm2-135m --max-num-seqs 8 --sweep rate=0.5:1.5:0.25 --sweep noise=0,0.7 "
    "--strategies baton-pd,lengthwise --csv sweep.csv --report sweep.html": "--duration 20",
    "lengthwise profile": "TINY --quick --max-num-seqs 2 --max-model-len 160 --device cpu",
    "lengthwise bench engine": "TINY --rows 1 --input-len 6 --output-len 4 --rounds 1 --device cpu",
    "lengthwise paper scls": "--scale 0.125 --duration 4 --rates 8,16",
    "lengthwise paper ssjf --experiments rates --seeds 3 --report ssjf.html": "--scale 0.05 --rates 2,4",
}
"""Flags added to a command, so that it takes seconds on any machine; TINY is a folder with a model."""


def blocks(document: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(document.read_text("utf-8")) if kind == language]


def commands(document: Path) -> list[str]:
    """Every command of the shell blocks, without its comment."""
    found: list[str] = []
    open_line = ""
    for line in "".join(blocks(document, "sh")).splitlines():
        open_line += line
        try:
            shlex.split(open_line, comments=True)
        except ValueError:  # a quotation, or a command, goes on in the next line
            open_line += "\n"
            continue
        line = re.sub(r"(^|\s+)# .*", "", open_line.replace("\\\n", ""))
        found += [line] if line.strip() else []
        open_line = ""
    return [command.replace(".venv/bin/lengthwise", "lengthwise") for command in found]


COMMANDS = [command for document in DOCUMENTS for command in commands(document)]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and what commands set for their process as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.setattr(setup, "BUFFER_BYTES", 2**20)


@pytest.fixture(scope="module")
def readme_url(tiny_folder: Path) -> Iterator[str]:
    """Address of the server that `make serve` starts, with a tiny model under the default model's name."""
    with serve(tiny_folder, "--served-model-name", "smollm2-135m-instruct") as url:
        yield url


def equivalent(command: str) -> list[str]:
    """The `lengthwise` commands that a command comes to: for `make`, those that it would run."""
    if not command.startswith("make "):
        return [command]
    make = ["make", "--dry-run", *shlex.split(command)[1:]]
    environ = {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS")}  # of `make test`
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    return re.findall(
        r"(?:^|exec |&& )\S*/(lengthwise .*?)(?= && | >|$)", done.stdout.replace("\\\n", ""), re.MULTILINE
    )


def test_all_shell_commands_are_in_blocks_that_say_so() -> None:
    assert len(COMMANDS) > 25 and COMMANDS[0] == "make serve"
    for document in DOCUMENTS:
        unnamed = re.findall(r"^```\n(.*?)^```$", BLOCK.sub("", document.read_text("utf-8")), re.DOTALL | re.MULTILINE)
        assert [block for block in unnamed if re.search(r"^(lengthwise|make|curl|pip|git) ", block, re.MULTILINE)] == []


def test_the_exceptions_are_commands_of_the_documents() -> None:
    assert LEFT_OUT.keys() | SMALLER.keys() <= set(COMMANDS)
    assert LEFT_OUT.keys() & SMALLER.keys() == set()


def parse(command: str) -> None:
    found = equivalent(command)
    assert found
    if "--help" not in command:
        for one in found:
            cli.build_parser().parse_args(shlex.split(one)[1:])


@pytest.mark.parametrize("command", [one for one in dict.fromkeys(COMMANDS) if one.startswith(("make", "lengthwise"))])
def test_every_command_has_flags_that_exist(command: str) -> None:
    parse(command)


@pytest.mark.parametrize("document", [one for one in OTHERS if commands(one)], ids=lambda path: path.stem)
def test_commands_of_other_documents_have_flags_that_exist(document: Path) -> None:
    assert run(["strategy", "new", "my_order"]) == 0  # which some of them serve
    for command in commands(document):
        if command.startswith(("make", "lengthwise")):
            parse(command)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_commands_succeed_one_after_another(document: Path, tiny_folder: Path, readme_url: str) -> None:
    for command in commands(document):
        if command in LEFT_OUT or command.startswith("make"):
            continue
        line = f"{command} {SMALLER.get(command, '')}".replace(ADDRESS, readme_url)
        if command.startswith("lengthwise"):
            line = line.replace("TINY", str(tiny_folder)).replace("URL", readme_url)
            assert run(shlex.split(line)[1:]) == 0, command
            continue
        assert command.startswith("curl "), command
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout and not done.stdout.startswith('{"error"'), (command, done)
        assert done.stdout.endswith("data: [DONE]\n\n") or "curl -N" not in command


def run(words: list[str]) -> int:
    """The program's exit code, also where it leaves by SystemExit as --help does."""
    try:
        return cli.main(words)
    except SystemExit as leaving:
        return int(leaving.code or 0)


def test_make_chat_talks_to_the_server(tmp_path: Path, readme_url: str) -> None:
    binaries = tmp_path / "venv" / "bin"
    binaries.mkdir(parents=True)
    for name in ("python", "lengthwise"):
        (binaries / name).symlink_to(Path(sys.executable).with_name(name))
    (tmp_path / "venv" / "installed").touch()
    command = ["make", "chat", f"VENV={tmp_path / 'venv'}", f"ARGS=--url {readme_url}"]
    done = subprocess.run(command, cwd=ROOT, input="Hi\n", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_python_program_prints_an_answer(readme_url: str) -> None:
    (program,) = blocks(ROOT / "docs/tutorial-developer.md", "python")
    assert ADDRESS in program
    command = [sys.executable, "-P", "-c", program.replace(ADDRESS, readme_url)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "error"})
    assert done.returncode == 0 and done.stdout, done.stderr
