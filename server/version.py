"""The version, without heavy imports."""

from __future__ import annotations

VERSION = "0.3.0"  # read by pyproject.toml; tested
