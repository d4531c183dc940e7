"""Forests on disk: an archive with a manifest, read first, and the forest in skops' format, which runs no code.

scikit-learn promises nothing about forests that another version grew, so such a file is refused. A file's node
indices are checked too, since scikit-learn follows them without looking.
"""

from __future__ import annotations

import platform
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from models.files import replace_file
from scheduler.length.forest import Examples, Forest, Tree

FORMAT = 1
"""Raise it when the file, or the meaning of the features in it, changes."""

MANIFEST = "manifest.json"
FOREST = "forest.skops"

TREE = "sklearn.tree._tree.Tree"
"""The one type that skops does not trust by itself, because of the indices that are checked here."""


class ForestError(Exception):
    """A forest's file cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Versions and data that a forest was grown with."""

    format: int
    python: str
    numpy: str
    scikit_learn: str
    embedder: str
    """Name of the sentence embedder whose features it knows."""
    max_tokens: int
    """Tokens of a text that this embedder read."""
    rows: int


def manifest(embedder: str, max_tokens: int, rows: int) -> Manifest:
    """The manifest of a forest that is grown here and now."""
    import sklearn  # takes seconds, as below, and not every importer opens a forest

    return Manifest(FORMAT, platform.python_version(), np.__version__, sklearn.__version__, embedder, max_tokens, rows)


def save(path: Path, forest: Forest, about: Manifest) -> None:
    """Write a forest in one step: readers see the old file or the new one. Raises OSError."""
    content = {
        "regressor": forest.regressor,
        "features": forest.examples.features,
        "lengths": forest.examples.lengths,
    }
    import skops.io  # looks at all of scikit-learn when imported, which takes seconds and loads torch where it is there

    with replace_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(MANIFEST, msgspec.json.encode(about))
        archive.writestr(FOREST, skops.io.dumps(content))


def read_manifest(path: Path) -> Manifest:
    """The manifest of a file that this installation can use. Raises ForestError."""
    try:
        with zipfile.ZipFile(path) as archive:
            about = msgspec.json.decode(archive.read(MANIFEST), type=Manifest)
    except FileNotFoundError:
        raise ForestError(f"there is no forest at {path}: make one with `lengthwise train`") from None
    except (OSError, KeyError, zipfile.BadZipFile, msgspec.DecodeError) as error:
        raise ForestError(f"{path} is no forest of `lengthwise train`: {error}") from error
    _require_versions(path, about)
    return about


def load(path: Path) -> tuple[Forest, Manifest]:
    """Read a forest; raises ForestError with the remedy. Nothing that is in the file is run."""
    about = read_manifest(path)
    import skops.io

    try:
        with zipfile.ZipFile(path) as archive:
            content = skops.io.loads(archive.read(FOREST), trusted=[TREE])
        return _checked(content), about
    except Exception as error:  # a damaged or forged file can fail anywhere inside these libraries
        raise ForestError(f"{path} is damaged: make it anew with `lengthwise train` ({error})") from error


def _require_versions(path: Path, about: Manifest) -> None:
    here = manifest(about.embedder, about.max_tokens, about.rows)
    names = ("format", "python", "numpy", "scikit_learn")
    wrong = [
        f"{name.replace('_', '-')} {getattr(about, name)} (here {getattr(here, name)})"
        for name in names
        if _series(name, getattr(about, name)) != _series(name, getattr(here, name))
    ]
    if wrong:
        raise ForestError(
            f"{path} was made with {', '.join(wrong)}: train it again under this installation with `lengthwise train`"
        )


def _series(name: str, version: object) -> object:
    """The part of a version that has to agree: a bug-fix release of Python changes nothing that a forest depends on."""
    return str(version).rsplit(".", 1)[0] if name == "python" else version


def _checked(content: Any) -> Forest:
    from sklearn.ensemble import RandomForestRegressor

    regressor, features, lengths = content["regressor"], content["features"], content["lengths"]
    if type(regressor) is not RandomForestRegressor:
        raise ValueError(f"it holds {type(regressor).__name__}, not a random forest")
    if features.dtype != np.float32 or lengths.dtype != np.float32 or features.shape[:1] != lengths.shape:
        raise ValueError("its examples do not fit each other")
    if regressor.n_features_in_ != features.shape[1] or regressor._n_samples != len(lengths):
        raise ValueError("its examples do not fit its trees")
    for grown in regressor.estimators_:
        _check_tree(grown.tree_, features.shape[1])
    return Forest(regressor, Examples(np.ascontiguousarray(features), lengths))


def _check_tree(tree: Tree, features: int) -> None:
    """Raise ValueError unless every path through the tree stays in it and ends."""
    if tree.capacity != tree.node_count or tree.n_outputs != 1 or tree.n_features != features:
        raise ValueError("a tree's sizes disagree")
    left, right, feature = tree.children_left, tree.children_right, tree.feature
    nodes = np.arange(tree.node_count)
    inner = left != -1
    if not np.array_equal(inner, right != -1):
        raise ValueError("a tree's node has one child")
    for children in (left, right):  # trees are grown downwards, so that children come later
        if ((children <= nodes) | (children >= tree.node_count))[inner].any():
            raise ValueError("a tree's node has a child that is not in the tree")
    if ((feature < 0) | (feature >= features))[inner].any():
        raise ValueError("a tree's node asks for a feature that does not exist")
