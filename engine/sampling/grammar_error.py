"""What is raised of a grammar that cannot be used."""

from __future__ import annotations


class GrammarError(ValueError):
    """A grammar that cannot be used; the message is for the client."""


def require(what: str, value: int, limit: int, remedy: str) -> None:
    """Raise GrammarError where a grammar exceeds a bound, with its value and the limit."""
    if value > limit:
        raise GrammarError(f"has {value} {what}, and {limit} is the most that is taken; {remedy}")
