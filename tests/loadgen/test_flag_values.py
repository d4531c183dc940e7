from __future__ import annotations

import argparse

import pytest

from loadgen.flag_values import natural, whole, whole_from


def test_a_long_seed_is_not_rounded() -> None:
    assert natural("12345678901234567891") == 12345678901234567891


@pytest.mark.parametrize("text", ["0", "1.0", "1e3", "nan", "inf", "many", ""])
def test_whole_numbers_are_nothing_else(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number of at least 1"):
        whole(text)


def test_the_least_is_taken_and_nothing_below() -> None:
    assert (whole_from(-1)("-1"), natural("0"), whole("1")) == (-1, 0, 1)
    with pytest.raises(argparse.ArgumentTypeError, match="'-2' is not a whole number of at least -1"):
        whole_from(-1)("-2")
