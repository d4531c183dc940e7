"""How torch's libraries wait and remember on a CPU. To be set before torch is imported, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import MutableMapping

COMPILED_PRODUCTS = "128"
"""Compiled products that torch keeps, and as many that oneDNN does."""


def prepare_for_torch(environ: MutableMapping[str, str]) -> None:
    """Set what is read when torch loads, where the user has not.

    OpenMP's threads give the core away soon when they wait for each other. By default they spin for milliseconds, which
    is a disaster where anything else wants a core: with one other busy process on 2 cores, a decode step of 70 ms took
    up to 3 s, and 0.2 s like this. Undisturbed, both are as fast.

    A product is compiled for each number of tokens that a pass may have, which takes a millisecond and half a MiB. By
    default two tables keep 1,024 each: prompts of all lengths made 700 MiB of it. Tables of 256 save nothing in a soak,
    since what is freed lies in small parts between what is not.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "10000")
    for table in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        environ.setdefault(table, COMPILED_PRODUCTS)
