"""The program `lengthwise`, once its packages are found to be its own."""

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PACKAGES = ("models", "engine", "scheduler", "server", "loadgen")

BAD_CONFIG = 78  # EX_CONFIG: do not restart


def main() -> int:
    """Returns the exit code."""
    if sys.argv[1:2] == ["serve"]:  # imports take seconds; a service stopped meanwhile has not failed
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os._exit(0))
    for name in PACKAGES:
        if (reason := explain_foreign(name)) is not None:
            print(f"lengthwise: error: {reason}", file=sys.stderr)
            return BAD_CONFIG
    os.environ["PYTHONSAFEPATH"] = "1"  # child processes take no modules from the working directory
    from models.errors import INTERRUPTED  # only now: a package of that name may be foreign

    try:
        from server.cli.main import main

        return main()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would print a traceback on its way out


def explain_foreign(name: str) -> str | None:
    """Why a package is foreign, and the remedy; None when it is ours."""
    own = ROOT / name / "__init__.py"
    if (spec := find_spec(name)) is None:
        return f"the package {own.parent} is missing: install Lengthwise again"
    folders = spec.submodule_search_locations or [""]  # a folder without __init__.py has no origin
    found = Path(spec.origin or f"{next(iter(folders))}/__init__.py").resolve()
    if found != own:
        where = found.parent if found.name == own.name else found
        return (
            f"Python finds the package `{name}` in {where} and not in {own.parent}: "
            f"take {where.parent} off PYTHONPATH, or install Lengthwise into an environment of its own"
        )
    if not own.exists() or own.stat().st_size:  # ours are empty
        return f"another package has written over {own.parent}: install Lengthwise again, into a fresh environment"
    return None


if __name__ == "__main__":
    sys.exit(main())
