"""How OpenMP's threads wait for each other. To be set before torch is imported, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import MutableMapping


def spin_briefly(environ: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads give the core away soon when they wait for each other; it reads this when torch loads.

    By default they spin for milliseconds, which is a disaster where anything else wants a core: with one other busy
    process on 2 cores, a decode step of 70 ms took up to 3 s, and 0.2 s like this. Undisturbed, both are as fast.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "10000")
