"""Errors that a user can act on; free of torch, for every package to import."""

from __future__ import annotations


class TextError(ValueError):
    """Text or messages that the model's tokenizer or chat template refuses; the message is for the client."""
