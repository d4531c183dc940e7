"""The choice of how weights are kept on a device, and the replacement of a network's linear layers to that end.

It knows no network beyond its linear layers, and of the CPU only what decides about them.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import torch
from torch import nn

from models.network.linear import (
    GROUP,
    BeyondFloat16,
    HalfLinear,
    Int4Linear,
    Int8Linear,
    PackedLinear,
    PairedLinear,
)
from models.network.quantization import QUANTIZATIONS, Quantization

ALIGNMENT = 16
"""Outputs of a layer that the kernels for integer weights go through at a time."""

WIDE_SHARE = 0.25
"""Part of the free memory that weights in the model's dtype may take beside those in fewer bits."""

log = logging.getLogger(__name__)

HALVES = ("bfloat16", "float16")
"""Types of 16 bits that a checkpoint may be stored in."""


class UnsupportedQuantization(ValueError):
    """Raised for a quantization that does not exist, or has no kernels on this device; the message says what to do."""


def computes_bfloat16() -> bool:
    """Whether this CPU multiplies in bfloat16; others would convert back and forth."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def packs(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether packed layers exist for this dtype on this device."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype is torch.float32 or (dtype is torch.bfloat16 and computes_bfloat16())


def halves(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether float32 layers can keep their weights in float16 here."""
    return dtype is torch.float32 and device.type == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines


def choose(name: str, stored: str, dtype: torch.dtype, device: torch.device, *, narrows: bool) -> Quantization:
    """The quantization of a name. Raises UnsupportedQuantization.

    `auto` keeps weights that are stored in 16 bits in 16 bits where the CPU would have them widened, if it `narrows`,
    and rounds nothing else.
    """
    if name == "auto":
        fits = narrows and stored in HALVES and halves(dtype, device)
        return Quantization.FLOAT16 if fits else Quantization.NONE
    if name not in QUANTIZATIONS:
        raise UnsupportedQuantization(f"unknown quantization '{name}': choose auto, {', '.join(QUANTIZATIONS)}")
    chosen = Quantization(name)
    require(chosen, dtype, device)
    return chosen


def require(quantization: Quantization, dtype: torch.dtype, device: torch.device) -> None:
    """Raises UnsupportedQuantization where there are no kernels for it."""
    if quantization is Quantization.NONE:
        return
    if device.type != "cpu":
        raise UnsupportedQuantization(f"--quantization {quantization} is for CPUs: leave it out on {device.type}")
    if quantization is Quantization.FLOAT16 and not halves(dtype, device):
        raise UnsupportedQuantization(
            "--quantization float16 keeps the weights of float32 layers, on x86: give --dtype float32, or leave it out"
        )


def pack(
    network: nn.Module,
    quantization: Quantization = Quantization.NONE,
    head: nn.Module | None = None,
    *,
    free: int = 0,
    paired: bool = False,
) -> None:
    """Replace every plain linear layer of a network on a CPU; frees the weights that nothing else uses.

    head  the layer of the network that yields logits, which four bits would harm
    free  bytes of memory: where they are plenty, layers of few bits keep wide weights too, for batches of many rows
    paired  whether layers in the model's dtype shall never multiply one row
    """
    keep_wide = quantization in (Quantization.INT8, Quantization.INT4) and _has_room(network, free)
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                kept = Quantization.INT8 if child is head and quantization is Quantization.INT4 else quantization
                setattr(module, name, _packed(child, kept, keep_wide, PairedLinear if paired else PackedLinear))


def _has_room(network: nn.Module, free: int) -> bool:
    """Whether `free` bytes are plenty for the weights of all plain linear layers; says what follows from that."""
    needed = sum(layer.weight.nbytes for layer in network.modules() if type(layer) is nn.Linear)
    if enough := needed <= free * WIDE_SHARE:
        log.info("%d MiB of weights stay in the model's dtype as well, for batches of many rows", needed / 2**20)
    else:
        log.warning(
            "weights are kept in few bits only, since %d MiB more would be much of the free memory: steps of 16 rows "
            "and more, and prompts, may take up to twice as long",
            needed / 2**20,
        )
    return enough


def pack_encoder(network: nn.Module) -> None:
    """Replace the linear layers of a network in float32 that reads one short text at a time, on the CPU.

    Where it computes in 32 bits only, reading weights is half the time of a text of few tokens: they are kept in 16.
    """
    cpu = torch.device("cpu")
    if halves(torch.float32, cpu) and not computes_bfloat16():
        pack(network, Quantization.FLOAT16)
    elif packs(torch.float32, cpu):
        pack(network)


def _packed(
    linear: nn.Linear, quantization: Quantization, keep_wide: bool, plain: type[PackedLinear] = PackedLinear
) -> nn.Module:
    """The closest kind that this layer can have; `plain` is that of a weight in the model's dtype."""
    packable = packs(linear.weight.dtype, linear.weight.device)
    even = linear.out_features % ALIGNMENT == 0 and linear.in_features % GROUP == 0
    match quantization:
        case Quantization.FLOAT16:
            with suppress(BeyondFloat16):
                return HalfLinear(linear)
        case Quantization.INT4 if even:
            return Int4Linear(linear, keep_wide=keep_wide and packable)
        case Quantization.INT8 if even:
            return Int8Linear(linear, keep_wide=keep_wide and packable)
    return plain(linear) if packable else linear
