"""Calls that a test notes or lets fail; whatever else is called goes on as before."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode


def note_calls(
    patch: pytest.MonkeyPatch, owner: object, name: str, note: Callable[..., Any], into: list[Any] | None = None
) -> list[Any]:
    """What `note` makes of each call's arguments, in order; a call whose note raises fails."""
    noted, usual = [] if into is None else into, getattr(owner, name)

    def call(*given: Any, **more: Any) -> Any:
        noted.append(note(*given, **more))
        return usual(*given, **more)

    patch.setattr(owner, name, call)
    return noted


def fail_call(patch: pytest.MonkeyPatch, owner: object, name: str, at: int, error: Exception) -> None:
    """Let one call, counted from 0, fail."""
    calls, usual = count(), getattr(owner, name)

    def call(*given: Any, **more: Any) -> Any:
        if next(calls) == at:
            raise error
        return usual(*given, **more)

    patch.setattr(owner, name, call)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What `note` makes of each operation of torch and its arguments."""

    def __init__(self, note: Callable[[Any, Any], list[str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note, self.found = note, list[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found += self._note(function, args)
        return function(*args, **(kwargs or {}))
