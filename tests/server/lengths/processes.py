"""Processes that predict lengths; a server that lives on in this process may have others."""

import multiprocessing
from multiprocessing.process import BaseProcess


def predictor_pid() -> int:
    """The number of the only one."""
    (child,) = list_predictors()
    assert child.pid is not None
    return child.pid


def list_predictors() -> list[BaseProcess]:
    return [child for child in multiprocessing.active_children() if child.name == "length predictor"]
