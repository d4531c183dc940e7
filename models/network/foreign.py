"""Any causal language model as transformers runs it, over K and V that are not its own."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from transformers import PreTrainedModel

from models.network.attention import Mask
from models.network.kv_adapter import KvStore, StoreCache


class ForeignNetwork(nn.Module):
    """A network of transformers. One thread may use it at a time; see `twin`."""

    def __init__(self, network: PreTrainedModel) -> None:
        super().__init__()
        self.network = network
        self._select: tuple[Tensor, Tensor] | None = None
        head: nn.Module = network.get_output_embeddings()  # type: ignore[no-untyped-call]
        head._forward_pre_hooks.clear()  # a twin's copy still carries the original's hook
        head.register_forward_pre_hook(self._gather)

    @property
    def embeddings(self) -> Tensor:
        """The embedding of each token, (vocabulary, hidden)."""
        weight: Tensor = self.network.get_input_embeddings().weight  # type: ignore[assignment]
        return weight

    def _gather(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Give the head the chosen places only, by a hook, so that any network's own head and scaling stay in use."""
        if self._select is None:
            return None
        rows, places = self._select
        return (inputs[0][rows, places].unsqueeze(1),)  # (k, 1, hidden)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Mask,
        store: KvStore,
        select: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Logits in float32, as `LoadedModel.forward` has them."""
        self._select = select
        try:
            output = self.network(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=StoreCache(store, *tokens.shape),
                use_cache=True,
            )
        finally:
            self._select = None  # the network may also be called directly
        logits: Tensor = output.logits.float()
        return logits[:, 0] if select is not None else logits

    def read(self, tokens: Tensor) -> Tensor:
        """Logits (rows, new, vocab) of texts in one pass, without a cache or anything else of this server's."""
        logits: Tensor = self.network(input_ids=tokens, use_cache=False).logits
        return logits.float()

    def twin(self) -> ForeignNetwork:
        """A network for another thread, which shares these weights."""
        weights = {id(tensor): tensor for tensor in (*self.network.parameters(), *self.network.buffers())}
        return ForeignNetwork(copy.deepcopy(self.network, weights))
