"""Processes that predict lengths; a server that lives on in this process may have others."""

import multiprocessing
from multiprocessing.process import BaseProcess


def list_predictors() -> list[BaseProcess]:
    return [child for child in multiprocessing.active_children() if child.name == "length predictor"]
