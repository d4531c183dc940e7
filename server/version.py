"""The version, without heavy imports."""

VERSION = "0.3.0"  # read by pyproject.toml; tested
