"""How OpenMP's threads wait for each other, and how many compiled products oneDNN keeps. To be set before torch is
imported, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import MutableMapping

KEPT_PRODUCTS = "256"
"""Compiled products that torch and oneDNN keep, each in a table of its own, in place of 1,024.

In bfloat16 each size of a batch and its columns is one, of half a MiB: a tiny model had 829 MiB after 700 requests, and
721 like this, for 4 % more CPU time.
"""


def tune_libraries(environ: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads give the core away soon when they wait for each other, and bound what oneDNN compiles.

    By default they spin for milliseconds, which is a disaster where anything else wants a core: with one other busy
    process on 2 cores, a decode step of 70 ms took up to 3 s, and 0.2 s like this. Undisturbed, both are as fast.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "10000")
    for table in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        environ.setdefault(table, KEPT_PRODUCTS)
