"""A forest's file: it grows again as it was, and what is no such file, or a damaged one, is refused with a remedy."""

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scheduler.length.forest import Examples, ForestError, Growth, Manifest, grow, load, read, save
from tests.scheduler.length.examples import linear

ABOUT = Manifest("all-minilm-l6-v2", 64, Growth(trees=3))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "forests" / "model.forest"
    save(path, linear(), ABOUT)
    return path


def test_a_forest_grows_again_from_its_examples_and_predicts_the_same(path: Path) -> None:
    forest, about = load(path)
    kept = grow(linear(), ABOUT.growth)
    assert about == ABOUT
    assert np.array_equal(forest.predict(linear().features), kept.predict(linear().features))
    assert np.array_equal(read(path)[0].lengths, linear().lengths)
    assert forest.distributions(linear(1).features)[0].mean == kept.distributions(linear(1).features)[0].mean


def test_saving_leaves_nothing_else_behind(path: Path) -> None:
    assert [one.name for one in path.parent.iterdir()] == ["model.forest"]


def test_a_forest_of_another_format_is_refused(path: Path) -> None:
    save(path, linear(), replace(ABOUT, format=3))
    with pytest.raises(ForestError, match="has format 3, not 2: make it anew"):
        load(path)


def test_a_missing_file_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ForestError, match="there is no forest at .*: make one with `lengthwise train`"):
        load(tmp_path / "absent")


def test_what_is_no_forest_is_refused_and_no_object_is_read(path: Path) -> None:
    path.with_name("text").write_text("hello")
    path.with_name("truncated").write_bytes(path.read_bytes()[:1000])
    np.savez(path.with_name("objects.npz"), manifest=np.array([Path], dtype=object), features=1, lengths=1)
    with zipfile.ZipFile(path.with_name("earlier"), "w") as archive:
        archive.writestr("manifest.json", "{}")
    for name in ("text", "truncated", "objects.npz", "earlier"):
        with pytest.raises(ForestError, match="is no forest of this version: make it with `lengthwise train`"):
            load(path.with_name(name))


@pytest.mark.parametrize("lengths", [linear(50).lengths, linear().lengths.astype(np.float64)])
def test_examples_that_do_not_fit_each_other_are_refused(path: Path, lengths: np.typing.NDArray[np.float32]) -> None:
    save(path, Examples(linear().features, lengths), ABOUT)
    with pytest.raises(ForestError, match="is damaged, its rows do not fit each other"):
        load(path)


def test_examples_that_are_no_numbers_are_refused(path: Path) -> None:
    save(path, Examples(linear().features, np.full(200, np.nan, dtype=np.float32)), ABOUT)
    with pytest.raises(ForestError, match="is damaged.*finite"):
        load(path)
