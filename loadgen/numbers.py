"""Numbers of the command line: converters for argparse, which say what a number has to be."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole(text: str) -> int:
    return int(number(text, lambda value: value >= 1 and value.is_integer(), "a whole number of at least 1"))


def natural(text: str) -> int:
    return int(number(text, lambda value: value >= 0 and value.is_integer(), "a whole number of at least 0"))


def positive(text: str) -> float:
    return number(text, lambda value: value > 0, "a number above 0")


def unsigned(text: str) -> float:
    return number(text, lambda value: value >= 0, "a number of at least 0")


def number(text: str, fits: Callable[[float], bool], what: str) -> float:
    """A finite number that fits; raises ArgumentTypeError, which says that the text is not `what`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and fits(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value
