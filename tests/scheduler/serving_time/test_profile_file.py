"""Profiles on disk: the way there and back, and what is refused."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from engine.measure.timing import SliceTiming, Timing, Timings
from models.errors import UserError
from scheduler.serving_time import profile_file
from scheduler.serving_time.bilinear import Bilinear, FitErrors

ROOT = Path(__file__).parents[3]
CONDITIONS = profile_file.Conditions("/models/a b/Some-Model.gguf", "bfloat16", "none", "A Processor", 2, 512)
PROFILE = profile_file.Profile(
    conditions=CONDITIONS,
    measured_at="2026-01-01T00:00:00+00:00",
    program="0.1.0",
    model=Bilinear(1e-4, 0.1 + 0.2, 0, 1 / 3, 5, 6, 7, 8, 9, 10),
    errors=FitErrors(0.1, 0.2, None, 0.3),
    timings=Timings(
        (Timing(1, 16, 0.5),), (Timing(2, 32, 0.25),), (SliceTiming(1, 16, 128, 3.5),), (Timing(4, 16, 0.1),)
    ),
)


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    path = profile_file.write_profile(tmp_path, PROFILE)
    assert profile_file.read_profile(path) == PROFILE
    assert profile_file.load_profile(tmp_path, CONDITIONS) == PROFILE
    assert path.name.startswith("Some-Model.gguf-bfloat16-") and path.parent.parent == tmp_path


def test_a_new_one_takes_the_place_of_the_old_and_nothing_is_known_under_other_conditions(tmp_path: Path) -> None:
    path = profile_file.write_profile(tmp_path, PROFILE)
    newer = replace(PROFILE, measured_at="2026-01-02T00:00:00+00:00")
    assert (profile_file.write_profile(tmp_path, newer), profile_file.read_profile(path)) == (path, newer)
    assert list(path.parent.iterdir()) == [path]
    other = profile_file.Conditions("other", "float32", "int8", "Another", 4, 64)
    for name, value in asdict(other).items():
        assert profile_file.load_profile(tmp_path, replace(CONDITIONS, **{name: value})) is None


@pytest.mark.parametrize("version", [profile_file.VERSION - 1, profile_file.VERSION + 1])
def test_another_version_is_refused_even_when_it_would_read(tmp_path: Path, version: int) -> None:
    change(path := profile_file.write_profile(tmp_path, PROFILE), version=version)
    told = rf"version {version} .* reads version {profile_file.VERSION}: .* `lengthwise profile`"
    with pytest.raises(UserError, match=told):
        profile_file.load_profile(tmp_path, CONDITIONS)
    path.write_text(f'{{"version": {version}, "something": "else"}}')
    with pytest.raises(UserError, match=f"version {version}"):
        profile_file.read_profile(path)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"version": %d}' % profile_file.VERSION, b"\xff", b"[]"])
def test_what_is_no_profile_is_refused_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    profile_file.write_profile(tmp_path, PROFILE).write_bytes(content)
    with pytest.raises(UserError, match="is not a profile: .* `lengthwise profile`"):
        profile_file.load_profile(tmp_path, CONDITIONS)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("a file in the way")
    with pytest.raises(UserError, match="cannot write .* LENGTHWISE_CACHE"):
        profile_file.write_profile(tmp_path, PROFILE)
    with pytest.raises(UserError, match="cannot be read"):
        profile_file.read_profile(profile_file.profile_path(tmp_path, CONDITIONS))


def test_a_profile_is_read_without_importing_torch_or_an_optimizer(tmp_path: Path) -> None:
    path = profile_file.write_profile(tmp_path, PROFILE)
    code = (
        "import sys; from pathlib import Path; from scheduler.serving_time.profile_file import read_profile\n"
        "print(read_profile(Path(sys.argv[1])).program, sorted({'torch', 'scipy', 'sklearn'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "0.1.0 []\n"


IMPOSSIBLE = "is not a profile: a timing is of one row or more"
IMPOSSIBLE_FIGURES = [
    ("model", {"d4": -1}, "not negative"),
    ("timings", {"decode": [{"rows": 0, "length": 16, "seconds": 0.5}]}, IMPOSSIBLE),
    ("timings", {"decode": [{"rows": 1, "length": 16, "seconds": -1.0}]}, IMPOSSIBLE),
]


@pytest.mark.parametrize(("part", "wrong", "told"), IMPOSSIBLE_FIGURES)
def test_what_no_device_can_have_taken_is_refused(tmp_path: Path, part: str, wrong: dict[str, Any], told: str) -> None:
    path = profile_file.write_profile(tmp_path, PROFILE)
    change(path, **{part: json.loads(path.read_text())[part] | wrong})
    with pytest.raises(UserError, match=told):
        profile_file.read_profile(path)


def test_a_profile_of_other_conditions_under_this_name_is_refused(tmp_path: Path) -> None:
    other = profile_file.write_profile(tmp_path, replace(PROFILE, conditions=replace(CONDITIONS, device="Another")))
    other.rename(profile_file.profile_path(tmp_path, CONDITIONS))
    with pytest.raises(UserError, match=r"is a profile of .*Another.*, not of .*: remove it"):
        profile_file.load_profile(tmp_path, CONDITIONS)
