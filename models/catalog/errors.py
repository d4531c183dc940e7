"""The one error that fetching and checking weights raises, so that its parts need not know each other."""

from __future__ import annotations

from models.errors import UserError


class CatalogError(UserError):
    """A model cannot be had; the message names what is wrong and the remedy."""
