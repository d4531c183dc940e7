"""Run as a program: `lengthwise serve` with nothing behind it. The first argument is the model's name."""

import sys
from argparse import Namespace
from threading import Event

from server.cli.main import run_command
from server.config import ServeConfig, load_config
from server.process.life import serve
from tests.server.fakes import open_fake_service


def fake_fetch(config: ServeConfig) -> None:
    """Fetches for ever what is named so, and cleans up when it is stopped."""
    if config.model != "endless fetch":
        return
    try:
        print("fetching", flush=True)  # whoever reads this may send the signal at once
        Event().wait()
    finally:
        print("cleaned up", flush=True)


if __name__ == "__main__":
    model, port, timeout = sys.argv[1:]
    given = {"model": model, "port": int(port), "shutdown_timeout": float(timeout)}
    config = load_config(given, {}, None)
    sys.exit(run_command(Namespace(run=lambda _: serve(config, fake_fetch, open_fake_service))))
