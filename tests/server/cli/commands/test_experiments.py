"""An installed wheel, which has no experiments, has all other commands."""

from __future__ import annotations

import pytest

from server.cli import main as cli


@pytest.mark.parametrize("words", [("paper", "scls"), ("bench", "engine"), ("simulate", "--validate")])
def test_experiments_need_a_checkout(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_experiments", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert words[-1] in capsys.readouterr().err or words[0] == "paper"


def test_the_other_commands_do_not_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_experiments", lambda: None)
    args = cli.build_parser().parse_args(["bench", "--num-prompts", "3"])
    assert args.num_prompts == 3
