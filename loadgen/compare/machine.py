"""The machine of a comparison, and which of its settings are secret."""

import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from models.machine import processor_name, usable_cores

HIDDEN = "(hidden)"

SECRET_WORDS = frozenset({"key", "apikey", "token", "secret", "password", "passwd", "auth", "authorization", "bearer"})
USER = re.compile(r"(?<=://)[^/\s@]+@")  # user and password of a URL
# NAME=VALUE of a URL or a flag
ASSIGNED = re.compile(r"([\w-]+)=([^&#\s'\"]+)")
KEY_FLAG = re.compile(r"(--api-key\s+)((?:(?!-)\S+\s*)+)")  # keys behind their flag


def is_secret(name: str) -> bool:
    """By the name's last word: `api_key` is secret, `max_tokens` is not."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return bool(words) and words[-1].lower() in SECRET_WORDS


def hide(text: str) -> str:
    """Text without passwords and keys of URLs and flags."""
    text = USER.sub(f"{HIDDEN}@", text)
    text = KEY_FLAG.sub(rf"\g<1>{HIDDEN} ", text).rstrip() if "--api-key" in text else text
    return ASSIGNED.sub(lambda found: f"{found[1]}={HIDDEN}" if is_secret(found[1]) else found[0], text)


def publish(value: object) -> object:
    """As JSON, without infinity, paths, or secrets at any depth."""
    if isinstance(value, str | Path):
        return hide(str(value))
    if isinstance(value, Mapping):
        return {name: HIDDEN if one and is_secret(str(name)) else publish(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [publish(one) for one in value]
    return "inf" if value == math.inf else value


PACKAGES = ("lengthwise", "torch", "transformers", "aiohttp", "uvloop", "numpy")
GPU_QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


def describe_machine() -> dict[str, str]:
    return {
        "processor": processor_name(),
        "cores": f"{usable_cores()} usable of {os.cpu_count()} logical",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "GPU": _find_gpus() or "none found",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
    }


def find_versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: _find_version(name) for name in PACKAGES}


def _find_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # lengthwise itself, from a checkout
        return "not installed"


def collect_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that change servers, without secrets."""
    names = sorted(name for name in environ if name.startswith(("LENGTHWISE_", "OMP_", "CUDA_VISIBLE")))
    return {name: HIDDEN if is_secret(name) else hide(environ[name]) for name in names}


def _find_gpus() -> str:
    try:
        said = subprocess.run(["nvidia-smi", *GPU_QUERY], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(said.stdout.split("\n")).strip("; ") if said.returncode == 0 else ""
