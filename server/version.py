"""The version of Lengthwise, readable without an installation and without importing anything heavy."""

from __future__ import annotations

VERSION = "0.3.0"
"""The one place of it: pyproject.toml reads it, and a test holds all that names it to it."""
