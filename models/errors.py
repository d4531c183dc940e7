"""The error that ends a command with a message instead of a traceback, and exit codes; free of torch, for every package
to import."""

from __future__ import annotations

from typing import ClassVar

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""


class UserError(Exception):
    """A mistake or an obstacle that the user can act on; the message says what is wrong, and the remedy."""

    exit_code: ClassVar[int] = 1


class UsageError(UserError):
    """A command line that says too little or contradicts itself."""

    exit_code = 2


class TextError(UserError, ValueError):
    """Text or messages that the model's tokenizer or chat template refuses; the message is for the client."""
