"""A forest's file: it comes back the same, and one that is old, damaged or forged is refused with a remedy."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import skops.io
from sklearn.ensemble import RandomForestRegressor

from scheduler.length.forest import Growth, grow
from scheduler.length.forest_file import FOREST, MANIFEST, ForestError, Manifest, load, manifest, save
from tests.scheduler.length.examples import linear

ABOUT = manifest("all-minilm-l6-v2", 64, 200)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "forests" / "model.forest"
    save(path, grow(linear(), Growth(trees=3)), ABOUT)
    return path


def rewrite(path: Path, about: Manifest, content: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MANIFEST, msgspec.json.encode(about))
        archive.writestr(FOREST, content)


def content(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(FOREST)


def test_a_forest_comes_back_with_its_examples_and_predicts_the_same(path: Path) -> None:
    forest, about = load(path)
    kept = grow(linear(), Growth(trees=3))
    assert about == ABOUT
    assert np.array_equal(forest.predict(linear().features), kept.predict(linear().features))
    assert np.array_equal(forest.examples.lengths, linear().lengths)
    assert forest.distributions(linear(1).features)[0].mean == kept.distributions(linear(1).features)[0].mean


def test_saving_leaves_nothing_else_behind(path: Path) -> None:
    assert [one.name for one in path.parent.iterdir()] == ["model.forest"]


@pytest.mark.parametrize(
    ("about", "told"),
    [
        (replace(ABOUT, scikit_learn="1.0.0"), "scikit-learn 1.0.0"),
        (replace(ABOUT, numpy="1.0.0"), "numpy 1.0.0"),
        (replace(ABOUT, python="3.9.1"), r"python 3.9.1 \(here "),
        (replace(ABOUT, format=0), "format 0"),
    ],
)
def test_a_forest_of_other_versions_is_refused_before_it_is_opened(path: Path, about: Manifest, told: str) -> None:
    rewrite(path, about, b"never looked at")
    with pytest.raises(ForestError, match=f"made with {told}.*: train it again"):
        load(path)


def test_a_bug_fix_release_of_python_changes_nothing(path: Path) -> None:
    rewrite(path, replace(ABOUT, python=ABOUT.python.rsplit(".", 1)[0] + ".999"), content(path))
    assert load(path)[0].features == linear().features.shape[1]


def test_a_missing_file_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ForestError, match="there is no forest at .*: make one with `lengthwise train`"):
        load(tmp_path / "absent")


def test_what_is_no_forest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ForestError, match="is no forest"):
        load(tmp_path / "text")


def test_a_truncated_forest_is_refused(path: Path) -> None:
    rewrite(path, ABOUT, content(path)[:1000])
    with pytest.raises(ForestError, match="is damaged: make it anew"):
        load(path)


def test_types_that_no_forest_needs_are_not_trusted(path: Path) -> None:
    rewrite(path, ABOUT, skops.io.dumps({"regressor": Path}))
    with pytest.raises(ForestError, match="is damaged"):
        load(path)


@pytest.mark.parametrize("node", [{"left_child": 10**6}, {"left_child": 0}, {"feature": 10**6}, {"feature": -2}])
def test_a_tree_whose_nodes_point_elsewhere_is_refused(path: Path, node: dict[str, int]) -> None:
    """scikit-learn would follow such indices: out of memory's bounds, or for ever."""
    forest = grow(linear(), Growth(trees=1))
    tree = forest.regressor.estimators_[0].tree_
    state = tree.__getstate__()
    for field, value in node.items():
        state["nodes"][field][0] = value
    tree.__setstate__(state)
    examples = forest.examples
    forged = {"regressor": forest.regressor, "features": examples.features, "lengths": examples.lengths}
    rewrite(path, ABOUT, skops.io.dumps(forged))
    with pytest.raises(ForestError, match="is damaged.*a tree's node"):
        load(path)


def test_examples_that_do_not_belong_to_the_trees_are_refused(path: Path) -> None:
    forest = grow(linear(), Growth(trees=1))
    wrong = {"regressor": forest.regressor, "features": linear(50).features, "lengths": linear(50).lengths}
    rewrite(path, ABOUT, skops.io.dumps(wrong))
    with pytest.raises(ForestError, match="its examples do not fit its trees"):
        load(path)


def test_another_estimator_is_refused(path: Path) -> None:
    content = {"regressor": 3, "features": linear().features, "lengths": linear().lengths}
    rewrite(path, ABOUT, skops.io.dumps(content))
    with pytest.raises(ForestError, match=f"it holds int, not a random forest|{RandomForestRegressor.__name__}"):
        load(path)
