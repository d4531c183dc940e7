"""`python -P -m server.deploy.child PID ...`: the program as a child that ends with its parent, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the program with the words behind the parent's process id; returns its exit code."""
    parent = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        return 1
    import lengthwise

    return lengthwise.main()


if __name__ == "__main__":
    sys.exit(main())
