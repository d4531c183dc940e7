"""What the comparison ran on: processor, memory, GPU and versions, so that figures can be read years later."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from loadgen.compare.secrets import HIDDEN, hide, is_secret

PACKAGES = ("lengthwise", "torch", "transformers", "aiohttp", "uvloop", "numpy")
GPU_QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


def machine() -> dict[str, str]:
    """A few words on each part of the machine at hand."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _processor(),
        "cores": f"{usable} usable of {os.cpu_count()} logical",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "GPU": _gpus() or "none found",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Of Python and of what serves and what measures."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def theft() -> Callable[[], float | None]:
    """Tells, whenever it is asked, what share of the processors' time the host has taken from a virtual machine since
    this was called, from 0 to 1; None where the system does not say."""
    begun, before = time.monotonic(), _stolen()

    def share() -> float | None:
        now = _stolen()
        capacity = (time.monotonic() - begun) * (os.cpu_count() or 1)
        return None if before is None or now is None or not capacity else max(0.0, now - before) / capacity

    return share


def _stolen() -> float | None:
    """Seconds, of all processors together."""
    seconds: float | None = getattr(psutil.cpu_times(), "steal", None)
    return seconds


def settings_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that change what the servers do; the values of secret ones stay out."""
    names = sorted(name for name in environ if name.startswith(("LENGTHWISE_", "OMP_", "CUDA_VISIBLE")))
    return {name: HIDDEN if is_secret(name) else hide(environ[name]) for name in names}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


def _gpus() -> str:
    """As the driver's own tool names them; empty where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        said = subprocess.run([tool, *GPU_QUERY], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(said.stdout.split("\n")).strip("; ") if said.returncode == 0 else ""
