"""The error that ends a command with a message instead of a traceback, and exit codes; free of torch, for every package
to import."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""


class UserError(Exception):
    """A mistake or an obstacle that the user can act on; the message says what is wrong, and the remedy."""

    exit_code: ClassVar[int] = 1


class UsageError(UserError):
    """A command line that says too little or contradicts itself."""

    exit_code = 2


class CatalogError(UserError):
    """A model cannot be had; the message names what is wrong and the remedy."""


class TextError(UserError, ValueError):
    """Text or messages that the model's tokenizer or chat template refuses; the message is for the client."""


class StrategyError(UserError, ValueError):
    """A strategy cannot be had, or names a part that does not exist."""


@contextmanager
def translate_failures(word: Callable[[str], UserError]) -> Iterator[None]:
    """Raise what `word` makes of the reason when a library fails at a file or text, whatever it raises.

    A panic of Rust is a BaseException, which no `except Exception` meets. A UserError passes as it is.
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
