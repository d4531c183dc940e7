"""Values on the command line: converters for argparse, which say what a text has to be."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial

import orjson


def whole(text: str) -> int:
    return _whole(text, 1)


def natural(text: str) -> int:
    return _whole(text, 0)


def whole_from(least: int) -> Callable[[str], int]:
    """A converter for whole numbers that are not less."""
    return partial(_whole, least=least)


def positive(text: str) -> float:
    return number(text, lambda value: value > 0, "a number above 0")


def unsigned(text: str) -> float:
    return number(text, lambda value: value >= 0, "a number of at least 0")


def factor(text: str) -> float:
    return number(text, lambda value: value >= 1, "a number of at least 1")


def number(text: str, fits: Callable[[float], bool], what: str) -> float:
    """A finite number that fits; raises ArgumentTypeError, which says that the text is not `what`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and fits(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def json_object(text: str) -> dict[str, object]:
    try:
        value = orjson.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text} is not a JSON object such as {{"top_k": 5}}')
    return value


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)  # not by way of a float, which would round a long seed
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return value
