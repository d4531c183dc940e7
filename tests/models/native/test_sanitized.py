"""The compiled pass under the compiler's sanitizers: `make test-native`, some two minutes."""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from models.native.library import BUILDS, find_library

ROOT = Path(__file__).parents[3]
CASES = os.environ.get("LENGTHWISE_TEST_SANITIZERS", "")

pytestmark = pytest.mark.skipif(not CASES, reason="compiles for minutes: make test-native")


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
@pytest.mark.parametrize("build", BUILDS)
def test_random_passes_touch_only_what_is_theirs(build: str, sanitizers: str, tmp_path: Path) -> None:
    if find_library(build) is None:
        pytest.skip(f"this CPU cannot run the build for {build}")
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["ext-modules"]
    (module,) = (one for one in modules if one["name"] == f"models.native._{build}")
    flags = [flag for flag in module["extra-compile-args"] if flag not in ("-O3", "-g0")]
    checks = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-O1", "-g1", "-pthread"]
    source, program = Path(__file__).with_name("sanitized.cpp"), tmp_path / "sanitized"
    subprocess.run(["g++", *flags, *checks, "-I", ROOT, source, "-o", program], check=True, timeout=600)
    ended = subprocess.run([program, CASES], capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
