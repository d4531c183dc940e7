"""The version of Lengthwise, readable without an installation and without importing anything heavy."""

from __future__ import annotations

VERSION = "0.1.0"
"""Equals the version in pyproject.toml; a test keeps them together."""
