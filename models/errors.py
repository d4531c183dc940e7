"""Errors with messages, and exit codes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

INTERRUPTED = 130  # as in shells


class UserError(Exception):
    """With the remedy."""

    exit_code: ClassVar[int] = 1


class UsageError(UserError):
    exit_code = 2


class CatalogError(UserError):
    """A model cannot be had."""


class LoadError(UserError):
    """Of a network; the message says why and what to do."""


class TextError(UserError, ValueError):
    """The message is for the client."""


class StrategyError(UsageError, ValueError):
    pass


@contextmanager
def translate_failures(word: Callable[[str], UserError]) -> Iterator[None]:
    """Raise `word(reason)` for a library's failure, even a Rust panic, a BaseException; UserError passes."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = str(error) if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {error}"
        raise word(" ".join(reason.split())) from error


@contextmanager
def explain_unwritable_cache(where: str, kind: type[UserError] = UserError) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kind(
            f"cannot write {where}: {error.strerror or error}; free some space there or check its permissions, "
            "or set LENGTHWISE_CACHE to another folder"
        ) from error
