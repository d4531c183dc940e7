"""The rules of engine.lifecycle on a device that computes with torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from engine.forward.batch import RunningBatch
from engine.forward.device import TorchDevice
from engine.kv.host_store import HostStore
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.messages import EVERY_LENGTH, RowSpec, Terms
from engine.row import Row
from engine.sampling.grammar import Grammars
from models.network.loader import LoadedModel
from models.text import Text


class Pipeline(Lifecycle[Row]):
    """All rows of one device of the engine."""

    def __init__(
        self,
        model: LoadedModel,
        text: Text,
        batch: RunningBatch,
        *,
        max_prefill_tokens: int,
        store: HostStore[Row] | None = None,
        grammars: Grammars | None = None,
        prefixes: PrefixCache[RowKv] | None = None,
        ahead: bool | None = None,
    ) -> None:
        made = Grammars(text.to_json, model.vocab_size, model.end_token_ids) if grammars is None else grammars
        self.device = TorchDevice(model, text, batch, max_prefill_tokens, made, prefixes, ahead=ahead)
        self.batch = batch
        super().__init__(self.device, HostStore() if store is None else store, max_prefill_tokens)
        self._keeps_all = model.batch_invariant and not model.reads_exactly

    def admit(self, specs: Iterable[RowSpec], terms: Terms = Terms()) -> None:  # noqa: B008 (frozen)
        """Take in rows on the given terms; where their numbers must not tell, K and V of all that are handed back stay:
        what a step has computed, prefill would compute again with other bits."""
        super().admit(specs, replace(terms, keep_kv=EVERY_LENGTH) if self._keeps_all else terms)
