"""Settings that are refused before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.network.loader import LoadError
from server.cli.config import ServeConfig
from server.composition.loading import load_models


@pytest.mark.parametrize(
    ("choice", "message"),
    [({"strategy": "baton"}, "strategy baton reads prompts in a step"), ({"recompute": True}, "--recompute reads")],
)
def test_choices_that_contradict_batch_invariance_are_refused(
    choice: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message):
        load_models(ServeConfig(model=str(tmp_path), batch_invariant=True, **choice))  # type: ignore[arg-type]
