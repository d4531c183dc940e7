"""Loads a verified folder of weights onto a device, and chooses its pass."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from torch import Tensor, nn

from models.errors import LoadError, translate_failures
from models.native.decoder import NativeDecoder, NotNative, take_over_natively
from models.native.library import Library, find_library
from models.network.attention import Mask, Select
from models.network.decoder.decoder import Decoder, OtherLogits, take_over
from models.network.decoder.family import NotOfFamily
from models.network.generation_config import SamplingDefaults, sampling_defaults
from models.network.kv_store import KvShape, KvStore
from models.network.model_config import choose_dtype, read_config, read_context_length, read_kv_shape
from models.network.packing import choose, move_weights, pack, packs
from models.network.quantization import FEW_BITS, Kernels, Quantization

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from models.network.kv_adapter import ForeignNetwork

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One thread at a time; see `twin`."""

    folder: Path
    network: Decoder | NativeDecoder | ForeignNetwork
    kv: KvShape
    vocab_size: int
    context_length: int
    end_token_ids: frozenset[int]
    sampling_defaults: SamplingDefaults  # from generation_config.json
    quantization: Quantization = Quantization.NONE  # of linear layers

    @property
    def reads_exactly(self) -> bool:
        """Whether a token has the same bits in prompts and in steps, beside any others."""
        return isinstance(self.network, NativeDecoder)

    @property
    def device(self) -> torch.device:
        return self.kv.device

    def forward(self, tokens: Tensor, positions: Tensor, mask: Mask, store: KvStore, select: Select = None) -> Tensor:
        """One pass through the network; K and V of the tokens go to `store`.

        tokens, positions  (rows, new)
        mask               (rows or 1, 1, new, columns) boolean, True = may be read; None as in `attend`
        select             rows and places of the logits; only these pass the head
        returns            logits in float32: (k, vocab) with `select`, else (rows, new, vocab)
        """
        return self.network.forward(tokens, positions, mask, store, select)[..., : self.vocab_size]

    def twin(self) -> LoadedModel:
        """Shares weights."""
        return replace(self, network=self.network.twin())


def load(
    folder: Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    quantization: str = "auto",
    kernels: Kernels = Kernels.AUTO,
) -> LoadedModel:
    """Raises LoadError with the remedy."""
    where = torch.device(device)
    if where.type == "cuda":  # cuDNN's attention plans for 22 to 37 ms at each new shape
        torch.backends.cuda.enable_cudnn_sdp(False)
    told = f"{folder.name} cannot be loaded as a causal language model"
    with translate_failures(lambda why: LoadError(f"{told}: {why}. Download it again, or choose another")):
        return _load(folder, dtype, where, quantization, kernels)


def _load(folder: Path, dtype: str, where: torch.device, quantization: str, kernels: Kernels) -> LoadedModel:
    chosen = choose_dtype(dtype, where)
    config = read_config(folder)
    stored = str(getattr(config, "dtype", None)).removeprefix("torch.")
    kept = choose(quantization, stored, chosen, where, narrows=dtype == "auto")
    defaults = _sampling_defaults(folder)
    context = read_context_length(config)
    # late: 2.4 s, which a virtual device need not wait
    from models.network.kv_adapter import ForeignNetwork, read_network

    # Rounded on the host: the device need not hold the originals.
    place = torch.device("cpu") if kept in FEW_BITS else where
    loaded = read_network(folder, chosen, place)
    vocab_size = _head(loaded).out_features
    ends = _end_token_ids(loaded, vocab_size)
    network = _choose_pass(loaded, context, kept, _choose_library(kernels, kept, chosen, where))
    del loaded
    if network is None:
        network = read_network(folder, chosen, place)
    if kernels is Kernels.NATIVE and not isinstance(network, NativeDecoder):
        raise LoadError(f"--kernels native: they do not compute {folder.name}, as the log says: leave the flag out")
    if not isinstance(network, NativeDecoder) and (kept is not Quantization.NONE or packs(chosen, where)):
        pack(network, kept, _head(network), free=psutil.virtual_memory().available, device=where)
        nn.Module.to(network, where)
    if isinstance(network, Decoder) and where.type == "cuda":
        network.compile_parts()
    move_weights(network)
    return LoadedModel(
        folder=folder,
        network=network if isinstance(network, Decoder | NativeDecoder) else ForeignNetwork(network),
        kv=read_kv_shape(config, chosen, where),
        vocab_size=vocab_size,
        context_length=context,
        end_token_ids=ends,
        sampling_defaults=defaults,
        quantization=kept,
    )


def _choose_pass(
    loaded: PreTrainedModel, context_length: int, kept: Quantization, library: Library | None
) -> Decoder | NativeDecoder | PreTrainedModel | None:
    """Our own pass where it computes the same, else the network; None if that must be read again, as memory may not
    hold two.
    """
    name = type(loaded).__name__
    try:
        decoder = take_over(loaded, context_length)
        if library is None:
            return decoder
        weights = torch.bfloat16 if kept is Quantization.FLOAT16 else decoder.embeddings.dtype
        network = take_over_natively(decoder, library, weights, kept)
        log.info("passes run on this server's own kernels (%s)", library.build)
        return network
    except NotOfFamily as departure:
        log.info("%s runs through transformers: %s", name, departure)
        return loaded
    except NotNative as departure:
        log.info("passes run on torch's kernels: %s", departure)
        return decoder
    except OtherLogits as difference:
        log.warning(
            "%s runs through transformers, which is slower: this server's own forward pass computes other logits (%s)",
            name,
            str(difference),  # the frames hold the network
        )
        return None


def _choose_library(kernels: Kernels, kept: Quantization, dtype: torch.dtype, device: torch.device) -> Library | None:
    """None for torch. Raises LoadError where required but impossible."""
    if kernels is Kernels.TORCH or (device.type != "cpu" and kernels is Kernels.AUTO):
        return None
    library = find_library()
    if library is None:
        reason = "none were compiled for this CPU; with a C++ compiler (`apt install g++`) installing again makes them"
    elif device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        reason = "they compute in float32 and bfloat16, on CPUs"
    elif dtype is torch.bfloat16 and not library.computes_bfloat16:
        reason = "this CPU does not multiply in bfloat16"
    elif kept is Quantization.FP8:
        reason = "they have none for weights in fp8"
    elif kept in FEW_BITS and not library.multiplies_levels:
        reason = f"this CPU does not multiply in {kept} (AVX-512 VNNI)"
    else:
        return library
    if kernels is Kernels.NATIVE:
        raise LoadError(f"--kernels native: {reason}")
    log.info("passes run on torch's kernels: %s", reason)
    return None


def _end_token_ids(network: PreTrainedModel, vocab_size: int) -> frozenset[int]:
    """Raises LoadError for tokens beyond the vocabulary."""
    named = [getattr(one, "eos_token_id", None) for one in (network.generation_config, network.config)]
    ends = {end for one in named if one is not None for end in (one if isinstance(one, list) else [one])}
    foreign = [end for end in ends if not isinstance(end, int) or not 0 <= end < vocab_size]
    if foreign:
        raise LoadError(
            f"eos_token_id {foreign[0]!r} is no token of a vocabulary of {vocab_size}: correct it in "
            "generation_config.json, and in config.json"
        )
    return frozenset(ends)


def _sampling_defaults(folder: Path) -> SamplingDefaults:
    path, unusable = folder / "generation_config.json", f"{folder.name}: generation_config.json is not usable"
    with translate_failures(lambda why: LoadError(f"{unusable}: {why}; mend or delete it")):
        return sampling_defaults(path.read_bytes()) if path.exists() else SamplingDefaults()


def _head(network: Decoder | PreTrainedModel) -> nn.Linear:
    if isinstance(network, Decoder):
        return network.head
    head: object = network.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(head, nn.Linear):
        raise LoadError("this network has no linear head over a vocabulary: it is not a causal language model")
    return head
