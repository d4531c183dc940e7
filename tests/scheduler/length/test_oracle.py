"""The oracle, and that nobody else looks at what it knows."""

from pathlib import Path

import pytest

from engine.sampling.params import SamplingParams
from scheduler.length import oracle as module
from scheduler.length.oracle import NoReplay, oracle, true_length
from scheduler.length.prediction import Source


@pytest.mark.parametrize(("replay", "length"), [(5, 5), (50, 10)])
def test_the_oracle_says_what_will_be_generated(replay: int, length: int) -> None:
    sampling = SamplingParams(max_tokens=10, replay_tokens=replay)
    assert (oracle(sampling).length, oracle(sampling).source) == (length, Source.ORACLE)
    assert true_length(sampling) == length


def test_the_oracle_knows_nothing_of_real_requests() -> None:
    with pytest.raises(NoReplay, match="send replay_tokens, with --allow-replay"):
        oracle(SamplingParams(max_tokens=10))


def test_no_part_of_the_scheduler_but_the_oracle_sees_true_lengths() -> None:
    own = Path(module.__file__)
    scheduler = own.parent.parent
    seeing = [path.name for path in scheduler.rglob("*.py") if "replay_tokens" in path.read_text(encoding="utf-8")]
    assert seeing == [own.name]
