"""The forest: its means are scikit-learn's, its distributions agree with its means, it learns, and its file grows
again as it was or is refused with a remedy."""

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scheduler.length.forest import Examples, ForestError, Growth, Manifest, grow, load, read, save
from tests.scheduler.length.examples import linear

SMALL = Growth(trees=12)


def test_it_predicts_what_scikit_learn_predicts_as_the_mean_of_a_distribution() -> None:
    """Also that each tree's own bootstrap sample is found again: with other samples the means would differ."""
    forest, unseen = grow(linear(), SMALL), linear(50, seed=1).features
    assert forest.predict(unseen) == pytest.approx(forest.regressor.predict(unseen), rel=1e-5)
    means = [one.mean for one in forest.distributions(unseen)]
    assert means == pytest.approx(forest.predict(unseen).tolist(), rel=1e-4)
    with pytest.raises(ValueError, match="wants 21 features a request, not shape"):
        forest.predict(np.zeros((1, 20), dtype=np.float32))


NONSENSE = [(linear(0), "no examples"), (Examples(linear(2).features * np.nan, linear(2).lengths), "finite")]


@pytest.mark.parametrize(("examples", "message"), NONSENSE)
def test_nothing_is_grown_from_nothing_or_from_nonsense(examples: Examples, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grow(examples, SMALL)


def test_joined_examples_keep_the_newest() -> None:
    joined = linear(3, seed=1).joined(linear(2, seed=2), keep=4)
    assert joined.lengths.tolist() == [*linear(3, seed=1).lengths[1:], *linear(2, seed=2).lengths]
    assert len(joined.features) == 4


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


def test_a_forest_of_another_format_is_refused_and_a_missing_one_names_the_command(path: Path) -> None:
    assert [one.name for one in path.parent.iterdir()] == ["model.forest"], "saving leaves nothing else behind"
    save(path, linear(), replace(ABOUT, format=3))
    with pytest.raises(ForestError, match="has format 3, not 2: make it anew"):
        load(path)
    with pytest.raises(ForestError, match="there is no forest at .*: make one with `lengthwise train`"):
        load(path.with_name("absent"))


def test_what_is_no_forest_is_refused_and_no_object_is_read(path: Path) -> None:
    path.with_name("text").write_text("hello")
    path.with_name("truncated").write_bytes(path.read_bytes()[:1000])
    np.savez(path.with_name("objects.npz"), manifest=np.array([Path], dtype=object), features=1, lengths=1)
    with zipfile.ZipFile(path.with_name("earlier"), "w") as archive:
        archive.writestr("manifest.json", "{}")
    for name in ("text", "truncated", "objects.npz", "earlier"):
        with pytest.raises(ForestError, match="is no forest of this version: make it with `lengthwise train`"):
            load(path.with_name(name))


DAMAGED = [
    (linear(50).lengths, ", its rows do not fit each other"),
    (linear().lengths.astype(np.float64), ", its rows do not fit each other"),
    (np.full(200, np.nan, dtype=np.float32), ".*finite"),
]


@pytest.mark.parametrize(("lengths", "told"), DAMAGED)
def test_damaged_examples_are_refused(path: Path, lengths: np.typing.NDArray[np.float32], told: str) -> None:
    save(path, Examples(linear().features, lengths), ABOUT)
    with pytest.raises(ForestError, match=f"is damaged{told}"):
        load(path)
