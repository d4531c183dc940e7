"""The random forest for generation lengths (Magnus, III-B), a quantile regression forest (Meinshausen, JMLR 7, 2006),
kept on disk as the rows that it is grown from.
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

Tree = Any  # sklearn.tree._tree.Tree, untyped

GROWN_AT_ONCE = 5  # trees between two reports of progress


@dataclass(frozen=True, slots=True)
class Growth:
    """The paper gives none."""

    trees: int = 100
    min_leaf: int = 5  # a distribution needs a few answers
    features_share: float = 2 / 3
    # extremely randomised trees (Geurts, Ernst and Wehenkel, Machine Learning 63, 2006): a third of the time
    random_cuts: bool = False
    seed: int = 0
    jobs: int = 1  # threads for growing


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Features (n, f) and lengths in tokens (n,)."""

    features: FloatMatrix
    lengths: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.lengths)

    def where(self, chosen: NDArray[np.bool_]) -> Examples:
        return Examples(np.ascontiguousarray(self.features[chosen]), self.lengths[chosen])

    def joined(self, other: Examples, keep: int) -> Examples:
        """The newest `keep` of both."""
        features = np.concatenate((self.features, other.features))[-keep:]
        return Examples(features, np.concatenate((self.lengths, other.lengths))[-keep:])


class Forest:
    """Thread-safe. All trees descend together: scikit-learn's `apply` takes 15 microseconds a tree."""

    def __init__(self, regressor: Regressor, examples: Examples) -> None:
        self.regressor = regressor
        self.examples = examples
        self.features = int(regressor.n_features_in_)
        trees: list[Tree] = [grown.tree_ for grown in regressor.estimators_]
        self._roots = np.cumsum([0, *(tree.node_count for tree in trees[:-1])])
        self._depth = max(tree.max_depth for tree in trees)
        self._feature = np.maximum(np.concatenate([tree.feature for tree in trees]), 0)
        self._threshold = np.concatenate([tree.threshold for tree in trees])
        self._means = np.concatenate([tree.value[:, 0, 0] for tree in trees])
        self._children = np.concatenate(
            [_children(tree, root).ravel() for tree, root in zip(trees, self._roots, strict=True)]
        )  # (2 nodes,): left, right
        drawn = np.array(regressor.estimators_samples_)  # (trees, n)
        leaves = np.take_along_axis(self._leaves(examples.features).T, drawn, axis=1).ravel()
        self._lengths, which = np.unique(examples.lengths, return_inverse=True)
        pairs, counts = np.unique(np.stack((leaves, which[drawn.ravel()])), axis=1, return_counts=True)
        self._starts = np.searchsorted(pairs[0], np.arange(len(self._feature) + 1))
        self._which = pairs[1]  # lengths of each leaf
        self._shares = counts / np.bincount(leaves)[pairs[0]]

    def __getstate__(self) -> dict[str, object]:
        """Without the examples, for another process."""
        return {name: value for name, value in vars(self).items() if name not in ("regressor", "examples")}

    def predict(self, features: FloatMatrix) -> NDArray[np.float32]:
        """(n, f) -> expected lengths (n,)."""
        return np.asarray(self._means[self._leaves(features)].mean(axis=1), dtype=np.float32)

    def distributions(self, features: FloatMatrix) -> list[LengthDistribution]:
        """(n, f) -> the answers in their leaves."""
        return [self._distribution(leaves) for leaves in self._leaves(features)]

    def _leaves(self, features: FloatMatrix) -> NDArray[np.intp]:
        """(n, f) -> (n, trees), numbered through all trees."""
        if features.ndim != 2 or features.shape[1] != self.features:
            raise ValueError(f"this forest wants {self.features} features a request, not shape {features.shape}")
        values = features.astype(np.float32, copy=False).ravel()
        first = np.repeat(np.arange(len(features)) * self.features, len(self._roots))
        nodes = np.tile(self._roots, len(features))
        for _ in range(self._depth):
            right = values.take(first + self._feature.take(nodes)) > self._threshold.take(nodes)
            nodes = self._children.take(2 * nodes + right)  # half of indexing's time
        return nodes.reshape(len(features), -1)

    def _distribution(self, leaves: NDArray[np.intp]) -> LengthDistribution:
        starts = self._starts[leaves]
        sizes = self._starts[leaves + 1] - starts
        places = np.arange(sizes.sum()) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
        weights = np.bincount(self._which[places], self._shares[places]) / len(leaves)
        (known,) = weights.nonzero()
        return LengthDistribution(self._lengths[known], weights[known].astype(np.float32))


def _children(tree: Tree, root: int) -> NDArray[np.intp]:
    """(nodes, 2), numbered through all trees; a leaf is its own child."""
    children = np.stack((tree.children_left, tree.children_right), axis=1) + root
    return np.where(children < root, np.arange(tree.node_count)[:, np.newaxis] + root, children)


def grow(examples: Examples, growth: Growth = Growth(), advance: Callable[[int], None] | None = None) -> Forest:
    """`advance` is called with the number of new trees. Raises ValueError without examples."""
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
    """The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    embedder: str
    max_tokens: int  # tokens of a text that the embedder read
    growth: Growth = Growth()
    format: int = FORMAT


def save(path: Path, examples: Examples, about: Manifest) -> None:
    """Atomic. Raises OSError."""
    about = replace(about, growth=replace(about.growth, jobs=1))
    with replace_file(path) as file:
        manifest = np.frombuffer(msgspec.json.encode(about), dtype=np.uint8)
        np.savez(file, manifest=manifest, features=examples.features, lengths=examples.lengths)


def read(path: Path) -> tuple[Examples, Manifest]:
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
    examples, about = read(path)
    try:
        return grow(examples, about.growth), about
    except ValueError as error:
        raise ForestError(f"{path} is damaged: make it anew with `lengthwise train` ({error})") from error
