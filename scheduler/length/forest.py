"""The random forest that predicts generation lengths (Magnus, section III-B), and the distribution in its leaves.

It knows neither texts nor files. Besides the mean, a leaf tells which answers of the training set it holds, as in a
quantile regression forest (Meinshausen, JMLR 7, 2006), which is what a row's remaining length is estimated from.

Forests on disk: the rows that they grow from and how, and growing them again, which takes seconds.

So a file holds numbers only, and no version of any library matters.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.files import replace_file
from scheduler.length.features import FloatMatrix
from scheduler.length.prediction import LengthDistribution

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

Regressor: TypeAlias = "RandomForestRegressor | ExtraTreesRegressor"

Tree: TypeAlias = Any
"""sklearn.tree._tree.Tree, which has no type information."""

GROWN_AT_ONCE = 5
"""Trees between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How a forest is grown. The paper does not say; these do well on its eight tasks and keep the file small."""

    trees: int = 100
    min_leaf: int = 5
    """Least answers in a leaf: a distribution needs a few."""
    features_share: float = 2 / 3
    """Part of the features that each split looks at."""
    random_cuts: bool = False
    """Whether trees are extremely randomised (Geurts, Ernst and Wehenkel, Machine Learning 63, 2006): grown from all
    answers, each split the best of random ones. That takes a third of the time at the same error."""
    seed: int = 0
    jobs: int = 1
    """Threads; only growing uses them."""


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """A training set: features (n, f) and the lengths in tokens (n,) that they led to."""

    features: FloatMatrix
    lengths: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.lengths)

    def where(self, chosen: NDArray[np.bool_]) -> Examples:
        """The examples where `chosen`, (n,), is true."""
        return Examples(np.ascontiguousarray(self.features[chosen]), self.lengths[chosen])

    def joined(self, other: Examples, keep: int) -> Examples:
        """The newest `keep` of these examples and the others."""
        features = np.concatenate((self.features, other.features))[-keep:]
        return Examples(features, np.concatenate((self.lengths, other.lengths))[-keep:])


class Forest:
    """A grown forest. It never changes, so any thread may ask it.

    The nodes of all trees stand in one array, so that all trees are descended at once, a level a step: scikit-learn's
    own `apply` takes some 15 microseconds a tree, its `predict` 30 milliseconds to start threads.
    """

    def __init__(self, regressor: Regressor, examples: Examples) -> None:
        self.regressor = regressor
        self.examples = examples
        self.features = int(regressor.n_features_in_)
        """Number of features of a request."""
        trees: list[Tree] = [grown.tree_ for grown in regressor.estimators_]
        ends = np.cumsum([tree.node_count for tree in trees])
        self._roots = np.concatenate(([0], ends[:-1]))
        self._depth = max(tree.max_depth for tree in trees)
        self._feature = np.maximum(np.concatenate([tree.feature for tree in trees]), 0)
        self._threshold = np.concatenate([tree.threshold for tree in trees])
        self._means = np.concatenate([tree.value[:, 0, 0] for tree in trees])
        self._children = np.concatenate(
            [_children(tree, root).ravel() for tree, root in zip(trees, self._roots, strict=True)]
        )  # (2 nodes,): left, right
        self._answers, self._starts = self._sort_answers()

    def __getstate__(self) -> dict[str, object]:
        """The parts that predict, which another process gets without what they were grown from."""
        return {name: value for name, value in vars(self).items() if name not in ("regressor", "examples")}

    def predict(self, features: FloatMatrix) -> NDArray[np.float32]:
        """Features (n, f) -> expected lengths in tokens (n,)."""
        return np.asarray(self._means[self._leaves(features)].mean(axis=1), dtype=np.float32)

    def distributions(self, features: FloatMatrix) -> list[LengthDistribution]:
        """Features (n, f) -> how the answers in their leaves are distributed; the means are those of `predict`."""
        return [self._distribution(leaves) for leaves in self._leaves(features)]

    def _leaves(self, features: FloatMatrix) -> NDArray[np.intp]:
        """Features (n, f) -> leaves (n, trees), numbered through all trees."""
        if features.ndim != 2 or features.shape[1] != self.features:
            raise ValueError(f"this forest wants {self.features} features a request, not shape {features.shape}")
        values = features.astype(np.float32, copy=False).ravel()
        first = np.repeat(np.arange(len(features)) * self.features, len(self._roots))  # each request's, for each tree
        nodes = np.tile(self._roots, len(features))
        for _ in range(self._depth):
            right = values[first + self._feature[nodes]] > self._threshold[nodes]
            nodes = self._children[2 * nodes + right]
        return nodes.reshape(len(features), -1)

    def _distribution(self, leaves: NDArray[np.intp]) -> LengthDistribution:
        """Each tree's leaf counts as one, however many answers it holds."""
        sizes = self._starts[leaves + 1] - self._starts[leaves]
        places = np.arange(sizes.sum()) + np.repeat(self._starts[leaves] - np.cumsum(sizes) + sizes, sizes)
        return LengthDistribution.of(self._answers[places], np.repeat(1 / sizes, sizes).astype(np.float32))

    def _sort_answers(self) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Lengths that trees were grown from, by leaf, and where each leaf's begin: (trees n,) and (nodes + 1,)."""
        drawn = np.array(self.regressor.estimators_samples_)  # (trees, n)
        leaves = np.take_along_axis(self._leaves(self.examples.features).T, drawn, axis=1).ravel()
        order = np.argsort(leaves, kind="stable")
        starts = np.searchsorted(leaves[order], np.arange(len(self._feature) + 1))
        return self.examples.lengths[drawn.ravel()[order]], starts


def _children(tree: Tree, root: int) -> NDArray[np.intp]:
    """Each node's left and right child, (nodes, 2), numbered through all trees; a leaf is its own."""
    children = np.stack((tree.children_left, tree.children_right), axis=1) + root
    return np.where(children < root, np.arange(tree.node_count)[:, np.newaxis] + root, children)


def grow(examples: Examples, growth: Growth = Growth(), advance: Callable[[int], None] | None = None) -> Forest:
    """Fit a forest; `advance` is called with the number of new trees. Raises ValueError without examples."""
    if len(examples) == 0:
        raise ValueError("there are no examples to grow a forest from")
    if not (np.isfinite(examples.features).all() and np.isfinite(examples.lengths).all()):
        raise ValueError("examples must be finite numbers")
    from sklearn import ensemble  # takes seconds

    regressor = (ensemble.ExtraTreesRegressor if growth.random_cuts else ensemble.RandomForestRegressor)(
        n_estimators=0,
        min_samples_leaf=growth.min_leaf,
        max_features=growth.features_share,
        random_state=growth.seed,
        n_jobs=growth.jobs,
        warm_start=True,
    )
    while (rest := growth.trees - regressor.n_estimators) > 0:
        more = min(GROWN_AT_ONCE, rest)
        regressor.set_params(n_estimators=regressor.n_estimators + more)
        regressor.fit(examples.features, examples.lengths)
        if advance is not None:
            advance(more)
    return Forest(regressor, examples)


FORMAT = 2  # of the file, and the meaning of the features in it


class ForestError(Exception):
    """A forest's file cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the rows of a forest were made with, and how it grows from them."""

    embedder: str
    """Name of the sentence embedder whose features it knows."""
    max_tokens: int
    """Tokens of a text that this embedder read."""
    growth: Growth = Growth()
    format: int = FORMAT


def save(path: Path, examples: Examples, about: Manifest) -> None:
    """Write the rows of a forest in one step: readers see the old file or the new one. Raises OSError."""
    about = replace(about, growth=replace(about.growth, jobs=1))
    with replace_file(path) as file:
        manifest = np.frombuffer(msgspec.json.encode(about), dtype=np.uint8)
        np.savez(file, manifest=manifest, features=examples.features, lengths=examples.lengths)


def read(path: Path) -> tuple[Examples, Manifest]:
    """The rows in a file. Raises ForestError with the remedy."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            about = msgspec.json.decode(content["manifest"].tobytes(), type=Manifest)
            examples = Examples(content["features"], content["lengths"])
    except FileNotFoundError:
        raise ForestError(f"there is no forest at {path}: make one with `lengthwise train`") from None
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, msgspec.DecodeError) as error:
        raise ForestError(f"{path} is no forest of this version: make it with `lengthwise train` ({error})") from error
    if about.format != FORMAT:
        raise ForestError(f"{path} has format {about.format}, not {FORMAT}: make it anew with `lengthwise train`")
    features, lengths = examples.features, examples.lengths
    if features.dtype != np.float32 or lengths.dtype != np.float32 or features.shape[:1] != lengths.shape:
        raise ForestError(f"{path} is damaged, its rows do not fit each other: make it anew with `lengthwise train`")
    return examples, about


def load(path: Path) -> tuple[Forest, Manifest]:
    """Grow the forest of a file again. Raises ForestError with the remedy."""
    examples, about = read(path)
    try:
        return grow(examples, about.growth), about
    except ValueError as error:
        raise ForestError(f"{path} is damaged: make it anew with `lengthwise train` ({error})") from error
