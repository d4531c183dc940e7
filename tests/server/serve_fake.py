"""Run as a program: `lengthwise serve` with nothing behind it. The first argument is the model's name."""

from __future__ import annotations

import sys

from server.config import load_config
from server.process import serve
from tests.server.fakes import open_fake_service

if __name__ == "__main__":
    model, port, timeout = sys.argv[1:]
    given = {"model": model, "port": int(port), "shutdown_timeout": float(timeout)}
    sys.exit(serve(load_config(given, {}, None), open_fake_service))
