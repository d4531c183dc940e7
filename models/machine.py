"""This machine and process: processor, open files, signals. Free of torch."""

import os
import platform
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


def processor_name() -> str:
    """As /proc/cpuinfo has it."""
    lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def allow_open_files(wanted: int) -> int:
    """As many as the hard limit allows, which is returned."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


@contextmanager
def handle_signals(handlers: Mapping[int, Callable[[int, FrameType | None], object]]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
