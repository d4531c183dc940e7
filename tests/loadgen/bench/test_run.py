"""The steps of a benchmark before and after its run."""

from __future__ import annotations

import resource

import pytest

from loadgen.bench.run import SPARE_FILES, allow_open_files

FOREVER = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "connections", "expected"),
    [
        ((1024, 8192), 2000, (2000 + SPARE_FILES, 8192)),
        ((1024, FOREVER), 2000, (2000 + SPARE_FILES, FOREVER)),
        ((1024, 1500), 2000, (1500, 1500)),
        ((1024, 8192), 10, None),
        ((FOREVER, FOREVER), 10**6, None),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_needed_and_allowed(
    limits: tuple[int, int], connections: int, expected: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: set_to.append(both))
    allow_open_files(connections)
    assert set_to == ([] if expected is None else [expected])
