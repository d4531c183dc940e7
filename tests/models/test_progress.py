"""Progress without a terminal is a few lines; on one, bars that are drawn no oftener than twice a second."""

import itertools

import pytest

from models.progress import LINE_INTERVAL, Bars


def test_without_a_terminal_a_part_is_a_line_and_another_when_it_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    times = itertools.chain([0.0, 0.0, 1.0, LINE_INTERVAL, LINE_INTERVAL + 1], itertools.repeat(100.0))
    with Bars(clock=lambda: next(times)) as bars:
        bar = bars.begin("first [part]", 3)
        for done in (1, 2, 3):
            bar.show(done, note="1 running")
    assert capsys.readouterr().err == "first [part]\nfirst [part]: 2 of 3, 1 running\n"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("threaded", [True, False])
def test_the_last_thing_drawn_is_what_has_been_done(capsys: pytest.CaptureFixture[str], threaded: bool) -> None:
    with Bars(threaded=threaded) as bars:
        watch = bars.watch("first [part]", 300)
        for done in range(300):
            watch(done + 1)
        bars.begin("second").advance(7)
    err = capsys.readouterr().err
    assert "first [part]" in err and "300/300" in err and "7/?" in err
    assert err.count("first [part]") < 20


@pytest.mark.usefixtures("terminal")
def test_only_the_latest_part_may_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars(latest_only=True) as bars:
        bars.begin("first", 3)
        bars.begin("second", 4)
        bars.advance()
    drawn = capsys.readouterr().err
    assert "1/4" in drawn and "first" not in drawn.rpartition("second")[2]
