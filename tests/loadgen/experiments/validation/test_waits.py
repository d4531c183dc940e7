"""The default's bound in seconds, on cells of the page's measurement."""

import pytest

from loadgen.experiments.grid.cells import HARD, Cell
from loadgen.experiments.options import read_requests
from loadgen.experiments.validation import waits


@pytest.mark.parametrize("prediction", waits.PREDICTIONS)
def test_few_wait_for_more_seconds_than_the_bound_and_none_for_many(prediction: str) -> None:
    """The page promised seconds where the proof is of work: 1,085 of 72,000 waited longer, some 4.5 times."""
    ratios, _ = waits.measure_waits(Cell("small CPU", "log-normal", HARD, prediction=prediction, requests=300))
    assert len(ratios) == 300 and max(ratios) > 0.5, "some wait, so that the bound means something"
    assert sum(ratio > 1 for ratio in ratios) <= 15 and max(ratios) < 2


def test_the_table_counts_what_is_beyond_the_bound() -> None:
    cells = [cell for cell in waits.list_cells(150) if cell.load == "log-normal" and cell.machine == "small CPU"][:2]
    late = sum(ratio > 1 for cell in cells for ratio in waits.measure_waits(cell)[0])
    (row,) = waits.tabulate(cells).rows
    assert row[:4] == (waits.PREDICTIONS[0], "300", str(late), f"{late / 3:.2f} %")


@pytest.mark.parametrize("word", ["nope", "-1", "99"])
def test_a_wrong_number_of_requests_is_told_in_a_line(
    word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["waits", word])
    with pytest.raises(SystemExit) as ended:
        read_requests(1500)
    assert ended.value.code == 2 and f"{word!r} is not a whole number of at least 100" in capsys.readouterr().err
