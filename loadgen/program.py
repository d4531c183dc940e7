"""How this program starts itself."""

from __future__ import annotations

import sys

PROGRAM = (sys.executable, "-P", "-m", "lengthwise")
"""The beginning of a command. Without `-P`, Python would look in the working directory first."""
