"""The choice of how weights are kept on a device, and the replacement of a network's linear layers to that end.

It knows no network beyond its linear layers, and of the CPU only what decides about them.

On a CPU weights lie in huge pages: a step reads all of them, and looks up an address for each page. Most systems give
huge pages to memory only for which it is asked, and neither torch nor malloc asks. Memory for K and V is left alone:
rows touch it here and there, and huge pages stalled the first steps.
"""

from __future__ import annotations

import ctypes
import logging
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn, ops

from models.errors import UserError
from models.network.linear import (
    GROUP,
    BeyondFloat16,
    CudaInt4Linear,
    Fp8Linear,
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


class UnsupportedQuantization(UserError, ValueError):
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
    if device.type == "cuda" and chosen is not Quantization.NONE:
        _require_on_cuda(chosen, device)
    elif chosen is Quantization.FP8:
        log.warning("weights in fp8 are for CUDA: on a CPU they show what an answer loses by them, and are slow")
    elif chosen is Quantization.FLOAT16 and not halves(dtype, device):
        raise UnsupportedQuantization(
            "--quantization float16 keeps the weights of float32 layers, on x86: give --dtype float32, or leave it out"
        )
    return chosen


CAPABILITIES = {Quantization.INT4: (8, 0), Quantization.FP8: (8, 9)}
"""What there are kernels for on CUDA, and the least compute capability of a device that runs them."""


def _require_on_cuda(quantization: Quantization, device: torch.device) -> None:
    if quantization not in CAPABILITIES:
        kinds = " or ".join(CAPABILITIES)
        raise UnsupportedQuantization(
            f"--quantization {quantization} is for CPUs: leave it out on cuda, or give {kinds}"
        )
    needed, found = CAPABILITIES[quantization], torch.cuda.get_device_capability(device)
    if found < needed:
        raise UnsupportedQuantization(
            f"--quantization {quantization} needs a GPU of compute capability {needed[0]}.{needed[1]}, "
            f"and this one has {found[0]}.{found[1]}: leave it out"
        )


def pack(
    network: nn.Module,
    quantization: Quantization = Quantization.NONE,
    head: nn.Module | None = None,
    *,
    free: int = 0,
    paired: bool = False,
    device: torch.device | None = None,
) -> None:
    """Replace every plain linear layer of a network on a CPU; frees the weights that nothing else uses.

    On another `device` layers are packed there one after another, so that it need not hold all of them as they were.

    head  the layer of the network that yields logits, which four bits would harm
    free  bytes of memory: where they are plenty, layers of few bits keep wide weights too, for batches of many rows
    paired  whether layers in the model's dtype shall never multiply one row
    """
    cuda = device is not None and device.type == "cuda"
    keep_wide = not cuda and quantization in (Quantization.INT8, Quantization.INT4) and _has_room(network, free)
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                kept = _kept(quantization, cuda=cuda) if child is head else quantization
                plain = PairedLinear if paired else PackedLinear
                setattr(module, name, _packed(child.to(device), kept, keep_wide, plain, cuda=cuda))


def _kept(quantization: Quantization, *, cuda: bool) -> Quantization:
    """How a network's head is kept."""
    if quantization is Quantization.FP8 or cuda:
        return Quantization.NONE
    return Quantization.INT8 if quantization is Quantization.INT4 else quantization


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
    linear: nn.Linear,
    quantization: Quantization,
    keep_wide: bool,
    plain: type[PackedLinear] = PackedLinear,
    *,
    cuda: bool = False,
) -> nn.Module:
    """The closest kind that this layer can have; `plain` is that of a weight in the model's dtype."""
    packable = packs(linear.weight.dtype, linear.weight.device)
    even = linear.out_features % ALIGNMENT == 0 and linear.in_features % GROUP == 0
    match quantization:
        case Quantization.FLOAT16:
            with suppress(BeyondFloat16):
                return HalfLinear(linear)
        case Quantization.INT4 if even and cuda:
            return CudaInt4Linear(linear)
        case Quantization.FP8 if linear.out_features % ALIGNMENT == linear.in_features % ALIGNMENT == 0:
            return Fp8Linear(linear)
        case Quantization.INT4 if even:
            return Int4Linear(linear, keep_wide=keep_wide and packable)
        case Quantization.INT8 if even:
            return Int8Linear(linear, keep_wide=keep_wide and packable)
    return plain(linear) if packable else linear


MADV_COLLAPSE = 25
"""Advice to Linux, from 6.1 on, to move what lies in small pages into huge ones at once; addresses stay."""

SIZE_FILE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
"""Tells the bytes of a huge page, where the system has some."""


def move_weights(network: nn.Module) -> None:
    """Move a network's weights on the CPU into huge pages, as far as the system does that."""
    try:
        size = int(SIZE_FILE.read_text())
        advise = ctypes.CDLL(None).madvise
    except (OSError, ValueError, AttributeError) as error:
        log.debug("weights stay in small pages: %s", error)
        return
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    pages = find_pages(network, size)
    left = sum(bool(advise(page, size, MADV_COLLAPSE)) for page in pages)
    log.debug("%d of %d MiB that hold weights stay in small pages", left * size >> 20, len(pages) * size >> 20)


def find_pages(network: nn.Module, size: int) -> list[int]:
    """Addresses of the pages of `size` bytes that hold weights on the CPU, with what lies beside smaller ones."""
    pages = set[int]()
    for module in network.modules():
        for weight in (*module.parameters(recurse=False), *module.buffers(recurse=False), *vars(module).values()):
            if not isinstance(weight, Tensor) or weight.device.type != "cpu":
                continue
            if weight.is_mkldnn:
                first, count = int(ops.mkldnn.data_ptr(weight)), int(ops.mkldnn._nbytes(weight))
            else:
                first, count = weight.data_ptr(), weight.nbytes
            if count:
                pages.update(range(first // size * size, first + count, size))
    return sorted(pages)
