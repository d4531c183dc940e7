"""Errors that end a command with a message, and exit codes; torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

INTERRUPTED = 130  # exit code after Ctrl-C, as in shells


class UserError(Exception):
    """The message says what is wrong, and the remedy."""

    exit_code: ClassVar[int] = 1


class UsageError(UserError):
    """An incomplete or contradictory command line."""

    exit_code = 2


class CatalogError(UserError):
    """A model cannot be had."""


class TextError(UserError, ValueError):
    """The tokenizer or chat template refuses it; the message is for the client."""


class StrategyError(UserError, ValueError):
    """A strategy cannot be had, or names an unknown part."""


@contextmanager
def translate_failures(word: Callable[[str], UserError]) -> Iterator[None]:
    """Raise `word(reason)` for any failure of a library.

    A Rust panic is a BaseException, which `except Exception` misses. UserError passes.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = str(error) if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {error}"
        raise word(" ".join(reason.split())) from error
