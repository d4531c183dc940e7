"""Objects from outside the tree, such as a strategy's row: from a file, a package, or an installed entry point."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from models.errors import UserError

GROUP = "lengthwise.strategies"
"""Entry points of installed packages that name rows of the table of strategies."""


class StrategyError(UserError, ValueError):
    """A strategy cannot be had, or names a part that does not exist."""


def list_installed() -> Iterable[str]:
    """Names of the rows that installed packages bring."""
    return sorted(entry_points(group=GROUP).names)


def load_outside(name: str) -> object:
    """The object that PACKAGE:ROW, FILE.py:ROW or the name of an entry point stands for.

    Raises KeyError for a name of none of these forms, and StrategyError where the object cannot be had.
    """
    source, colon, attribute = name.rpartition(":")
    try:
        if not colon:
            return next(iter(entry_points(group=GROUP, name=name))).load()
        module = _run_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except StopIteration:
        raise KeyError(name) from None
    except Exception as error:  # anything may happen in code of others
        raise StrategyError(f"strategy {name}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise StrategyError(f"strategy {name}: {source} has no {attribute}")
    return getattr(module, attribute)


def _run_file(file: Path) -> ModuleType:
    """The module that a file makes; run once, however often it is asked for."""
    path = file.expanduser().resolve()
    name = f"strategy of {path}"  # which no import statement can mean
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a name that ends in .py has a loader"
    module = sys.modules[name] = module_from_spec(spec)  # registered first, since dataclasses look it up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
