"""The machine's processor. Free of torch."""

import os
import platform
from pathlib import Path


def processor_name() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))
