"""How predictors share the cores with executors."""

import os

import torch

from models.machine import usable_cores

PREDICTOR_THREADS = 4  # texts are too short for more


PREDICTOR_NICENESS = 10  # nice(1): a tenth of a core beside an executor, all of a free one


def run_beside_executors(device: str) -> None:
    """A quarter of the cores beside GPUs; else one thread and a niceness, since a step waits for its slowest thread."""
    if device != "cpu" and torch.cuda.is_available():
        torch.set_num_threads(max(1, min(PREDICTOR_THREADS, usable_cores() // 4)))
        return
    torch.set_num_threads(1)
    os.nice(PREDICTOR_NICENESS)
