"""Commands that an installed wheel does not have say where they can be run."""

from __future__ import annotations

import pytest

from server.cli import main as cli
from server.cli.commands import experiments


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("paper", "scls", "--scale", "2"), "paper"),
        (("paper", "--help"), "paper"),
        (("bench", "engine", "--rows", "1"), "bench engine"),
        (("bench", "quality"), "bench quality"),
        (("simulate", "--validate", "--quick"), "simulate --validate"),
    ],
)
def test_experiments_need_a_checkout(
    words: tuple[str, ...], command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiments, "are_here", lambda: False)
    assert cli.main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"lengthwise: error: lengthwise {command} needs a checkout of the repository: ")


def test_the_other_commands_do_not_need_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiments, "are_here", lambda: False)
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    assert "paper" in capsys.readouterr().out
    args = cli.build_parser().parse_args(["bench", "--num-prompts", "3"])
    assert args.num_prompts == 3
