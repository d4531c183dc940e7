"""Hides keys and passwords from reports, wherever a user may have written them."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "(hidden)"

SECRET_WORDS = frozenset({"key", "apikey", "token", "secret", "password", "passwd", "auth", "authorization", "bearer"})
USER = re.compile(r"(?<=://)[^/\s@]+@")
"""User and password of a URL."""
ASSIGNED = re.compile(r"([\w-]+)=([^&#\s'\"]+)")
"""A parameter of a URL, or a flag with an equals sign."""
KEY_FLAG = re.compile(r"(--api-key\s+)((?:(?!-)\S+\s*)+)")
"""Keys that follow their flag."""


def is_secret(name: str) -> bool:
    """Whether a name is that of a key or a password, by its last word: `api_key` is, and `max_tokens` is not."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return bool(words) and words[-1].lower() in SECRET_WORDS


def hide(text: str) -> str:
    """The text without passwords and keys of URLs, and without values of flags that are keys."""
    text = USER.sub(f"{HIDDEN}@", text)
    text = KEY_FLAG.sub(rf"\g<1>{HIDDEN} ", text).rstrip() if "--api-key" in text else text
    return ASSIGNED.sub(lambda found: f"{found[1]}={HIDDEN}" if is_secret(found[1]) else found[0], text)


def hide_all(value: object) -> object:
    """A value without the secrets in its texts, however deep, and without the members with the name of a secret."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {name: HIDDEN if is_secret(str(name)) else hide_all(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [hide_all(one) for one in value]
    return value
