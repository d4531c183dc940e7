"""Figures that stand in the texts of the papers."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

PUBLISHED: Mapping[str, list[Any]] = MappingProxyType(
    tomllib.loads(Path(__file__).with_name("published.toml").read_text("utf-8"))
)
"""Tables of rows by name; the file says what stands in each place of a row."""
