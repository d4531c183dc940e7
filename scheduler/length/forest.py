"""The random forest that predicts generation lengths (Magnus, section III-B), and the distribution in its leaves.

It knows neither texts nor files. Besides the mean, a leaf tells which answers of the training set it holds, as in a
quantile regression forest (Meinshausen, JMLR 7, 2006), which is what a row's remaining length is estimated from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scheduler.length.distribution import LengthDistribution
from scheduler.length.features import FloatMatrix

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

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

    def joined(self, other: Examples, keep: int) -> Examples:
        """Both, the newest `keep` of them."""
        features = np.concatenate((self.features, other.features))[-keep:]
        return Examples(features, np.concatenate((self.lengths, other.lengths))[-keep:])


class Forest:
    """A grown forest. It never changes, so any thread may ask it."""

    def __init__(self, regressor: RandomForestRegressor, examples: Examples) -> None:
        self.regressor = regressor
        self.examples = examples
        self._trees: list[Tree] = [grown.tree_ for grown in regressor.estimators_]
        self._means = [tree.value[:, 0, 0] for tree in self._trees]
        samples = regressor.estimators_samples_
        self._answers = [self._sorted_answers(tree, drawn) for tree, drawn in zip(self._trees, samples, strict=True)]

    @property
    def features(self) -> int:
        """Number of features of a request."""
        return int(self.regressor.n_features_in_)

    def predict(self, features: FloatMatrix) -> NDArray[np.float32]:
        """Features (n, f) -> expected lengths in tokens (n,)."""
        return self._predict(self._leaves(features))

    def distributions(self, features: FloatMatrix) -> list[LengthDistribution]:
        """Features (n, f) -> how the answers in their leaves are distributed; the means are those of `predict`."""
        return [self._distribution(leaves) for leaves in self._leaves(features).T]

    def _leaves(self, features: FloatMatrix) -> NDArray[np.intp]:
        """Features (n, f) -> leaves (trees, n).

        Asks the trees one by one: the forest's own `predict` starts threads for each call, some 30 ms of work.
        """
        if features.ndim != 2 or features.shape[1] != self.features:
            raise ValueError(f"this forest wants {self.features} features a request, not shape {features.shape}")
        rows = np.ascontiguousarray(features, dtype=np.float32)
        leaves: NDArray[np.intp] = np.stack([tree.apply(rows) for tree in self._trees])
        return leaves

    def _predict(self, leaves: NDArray[np.intp]) -> NDArray[np.float32]:
        means = [mean[leaf] for mean, leaf in zip(self._means, leaves, strict=True)]
        return np.asarray(np.mean(means, axis=0), dtype=np.float32)

    def _distribution(self, leaves: NDArray[np.intp]) -> LengthDistribution:
        found = [
            answers[starts[leaf] : starts[leaf + 1]]
            for (answers, starts), leaf in zip(self._answers, leaves.tolist(), strict=True)
        ]
        sizes = np.array([len(one) for one in found])
        return LengthDistribution.of(np.concatenate(found), np.repeat(1 / sizes, sizes).astype(np.float32))

    def _sorted_answers(self, tree: Tree, drawn: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """The lengths that a tree was grown from, by leaf, and where each leaf's begin: (n,) and (nodes + 1,)."""
        leaves = tree.apply(self.examples.features)[drawn]
        order = np.argsort(leaves, kind="stable")
        starts = np.searchsorted(leaves[order], np.arange(tree.node_count + 1))
        return self.examples.lengths[drawn[order]], starts


def grow(examples: Examples, growth: Growth = Growth(), advance: Callable[[int], None] | None = None) -> Forest:
    """Fit a forest; `advance` is called with the number of new trees. Raises ValueError without examples."""
    if len(examples) == 0:
        raise ValueError("there are no examples to grow a forest from")
    if not (np.isfinite(examples.features).all() and np.isfinite(examples.lengths).all()):
        raise ValueError("examples must be finite numbers")
    from sklearn.ensemble import RandomForestRegressor  # takes seconds, and a server lets others grow its forests

    regressor = RandomForestRegressor(
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
