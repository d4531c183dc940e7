"""How this program starts itself."""

from __future__ import annotations

import sys

PROGRAM = (sys.executable, "-P", "-m", "server.cli")
"""The beginning of a command. Without `-P`, a folder `server` where the user happens to be would run instead."""
