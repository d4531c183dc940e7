"""Values on the command line of experiments: converters for argparse, which say what a text has to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from models.flags import convert_to
from models.options import Count, Natural, Positive

whole: Callable[[str], int] = convert_to(Count)
natural: Callable[[str], int] = convert_to(Natural)
positive: Callable[[str], float] = convert_to(Positive)


def whole_from(least: int) -> Callable[[str], int]:
    """A converter for whole numbers that are not less."""
    return convert_to(Annotated[int, Meta(ge=least)])
