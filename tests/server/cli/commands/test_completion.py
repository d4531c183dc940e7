"""`lengthwise completion`, as the shell itself makes use of it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from server.cli.main import main
from tests.server.cli.commands.runner import Told

ASK = """source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_lengthwise
printf "%s\\n" "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "lengthwise"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main(["completion", "bash"]) == 0
    return path


COMPLETED = [
    ("mod", {"models"}),
    ("models p", {"pull"}),
    ("serve --max-num-b", {"--max-num-batched-tokens"}),
    ("serve --strategy baton", {"baton", "baton-pd"}),
    ("serve --config pyproj", {"pyproject.toml"}),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("words", "some"), COMPLETED)
def test_bash_completes_commands_flags_values_and_files(script: Path, words: str, some: set[str]) -> None:
    asked = ["bash", "-c", ASK, "bash", str(script), "lengthwise", *words.split()]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=Path(__file__).parents[4])
    assert some <= {word.strip() for word in done.stdout.split()}, done.stderr
    assert all(word.startswith(words.split()[-1]) for word in done.stdout.split())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_theirs(shell: str, told: Told) -> None:
    assert "max-num-batched-tokens" in told("completion", shell)
