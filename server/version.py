"""The version, without heavy imports."""

VERSION = "0.4.0"  # read by pyproject.toml; tested
