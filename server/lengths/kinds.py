"""The kinds of length predictors, and which of them the settings ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from models.catalog.catalog import Catalog, CatalogError, default_cache
from models.errors import UserError
from models.proxy.network import read_manifest
from scheduler.length.cache import CAPACITY
from scheduler.strategy import STRATEGIES, Length
from server.cli.config import ServeConfig
from server.composition.cache_paths import forest_path, proxy_path
from server.lengths.lengths import Predict, predict_nothing, true_length
from server.lengths.process import Work
from server.lengths.worker import predict_by_proxy


@dataclass(frozen=True, slots=True)
class PredictorKind:
    """A kind of predictor that works in a process."""

    path: Callable[[Path, str], Path]
    """(cache folder, served model) -> the file or folder of what was trained."""
    work: Work | None
    """The work of the process; None for that of the forest."""
    learns: bool
    """Whether it is trained while it serves."""
    cache_size: int
    """Prompts in the length cache by default. A look-up embeds texts, which is what the forest does anyway."""


KINDS: Mapping[Length, PredictorKind] = MappingProxyType(
    {
        Length.FOREST: PredictorKind(forest_path, None, learns=True, cache_size=0),
        Length.PROXY: PredictorKind(proxy_path, predict_by_proxy, learns=False, cache_size=CAPACITY),
    }
)

IN_PROCESS: Mapping[Length, Predict] = MappingProxyType({Length.NONE: predict_nothing, Length.ORACLE: true_length})
"""Predictions that need no process."""

IN_MODEL = frozenset({Length.OWN})
"""Predictions from what the served model makes of a prompt."""


def choose_predictor(config: ServeConfig) -> Length:
    """The kind of prediction that the settings ask for. Raises UserError where it cannot work with them."""
    length = Length(config.length_predictor or STRATEGIES[config.strategy].length)
    if length is Length.ORACLE and not config.allow_replay:
        raise UserError("an oracle needs requests that say how long their answers become: add --allow-replay")
    if config.length_cache_size and length not in KINDS:
        raise UserError(f"--length-cache-size is for --length-predictor {' and '.join(KINDS)}, not {length}")
    return length


def fetch_predictor(config: ServeConfig) -> None:
    """Bring what predicts lengths into the cache, if it is not there. Raises CatalogError and UserError."""
    length = choose_predictor(config)
    if length not in KINDS:
        return
    try:
        Catalog().resolve(config.embedder)
        if length is Length.PROXY:
            read_manifest(proxy_path(default_cache(), config.model))
    except CatalogError as error:
        raise CatalogError(f"{error}; or serve without predicted lengths: --length-predictor none") from error


def cache_size(config: ServeConfig, kind: PredictorKind) -> int:
    """Prompts that the length cache holds; 0 where there is none."""
    return kind.cache_size if config.length_cache_size is None else config.length_cache_size
