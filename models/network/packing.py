"""Chooses weights' formats and replaces layers. On a CPU weights move to huge pages."""

import ctypes
import logging
from pathlib import Path

import torch
from torch import Tensor, nn, ops

from models.errors import LoadError
from models.network import linear as layers
from models.network.quantization import FEW_BITS, QUANTIZATIONS, Quantization

ALIGNMENT = 16  # outputs of integer kernels

WIDE_SHARE = 0.25  # of free memory, beside narrow weights

log = logging.getLogger(__name__)

HALVES = ("bfloat16", "float16")  # 16-bit types


def computes_bfloat16() -> bool:
    """Without conversion."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def packs(dtype: torch.dtype, device: torch.device) -> bool:
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype is torch.float32 or (dtype is torch.bfloat16 and computes_bfloat16())


def halves(dtype: torch.dtype, device: torch.device) -> bool:
    """Float16 weights in float32 layers."""
    return dtype is torch.float32 and device.type == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines


CAPABILITIES = {Quantization.INT4: (8, 0), Quantization.FP8: (8, 9)}  # by least compute capability


def choose(name: str, stored: str, dtype: torch.dtype, device: torch.device, *, narrows: bool) -> Quantization:
    """Raises LoadError. `auto` keeps 16-bit weights where the CPU would widen them, if it `narrows`."""
    if name == "auto":
        return Quantization.FLOAT16 if narrows and stored in HALVES and halves(dtype, device) else Quantization.NONE
    if name not in QUANTIZATIONS:
        raise LoadError(f"unknown quantization '{name}': choose auto, {', '.join(QUANTIZATIONS)}")
    chosen = Quantization(name)
    if device.type == "cuda" and chosen is not Quantization.NONE:
        if chosen not in CAPABILITIES:
            kinds = " or ".join(CAPABILITIES)
            raise LoadError(f"--quantization {chosen} is for CPUs: leave it out on cuda, or give {kinds}")
        needed, found = CAPABILITIES[chosen], torch.cuda.get_device_capability(device)
        if found < needed:
            raise LoadError(
                f"--quantization {chosen} needs a GPU of compute capability {needed[0]}.{needed[1]}, "
                f"and this one has {found[0]}.{found[1]}: leave it out"
            )
    elif chosen is Quantization.FP8:
        log.warning("weights in fp8 are for CUDA: on a CPU they show what an answer loses by them, and are slow")
    elif chosen is Quantization.FLOAT16 and not halves(dtype, device):
        raise LoadError(
            "--quantization float16 keeps the weights of float32 layers, on x86: give --dtype float32, or leave it out"
        )
    return chosen


def pack(
    network: nn.Module,
    quantization: Quantization = Quantization.NONE,
    head: nn.Module | None = None,
    *,
    free: int = 0,
    device: torch.device | None = None,
) -> None:
    """Replace every linear layer, freeing plain weights; on another `device` one after another.

    head    yields logits
    free    bytes of memory: if plenty, narrow layers keep wide weights for many rows
    """
    cuda = device is not None and device.type == "cuda"
    keep_wide = not cuda and quantization in (Quantization.INT8, Quantization.INT4)
    needed = sum(layer.weight.nbytes for layer in network.modules() if type(layer) is nn.Linear)
    if keep_wide and needed <= free * WIDE_SHARE:
        log.info("%d MiB of weights stay in the model's dtype as well, for batches of many rows", needed / 2**20)
    elif keep_wide:
        keep_wide = False
        log.warning(
            "weights are kept in few bits only, since %d MiB more would be much of the free memory: steps of 16 rows "
            "and more, and prompts, may take up to twice as long",
            needed / 2**20,
        )
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                kept = quantization
                if child is head and kept in FEW_BITS:  # four bits would harm logits
                    kept = Quantization.NONE if cuda or kept is Quantization.FP8 else Quantization.INT8
                setattr(module, name, _packed(child.to(device), kept, keep_wide, cuda=cuda))


def pack_encoder(network: nn.Module) -> None:
    """For one short text at a time: 16-bit weights halve reads."""
    cpu = torch.device("cpu")
    if halves(torch.float32, cpu) and not computes_bfloat16():
        pack(network, Quantization.FLOAT16)
    elif packs(torch.float32, cpu):
        pack(network)


def _packed(linear: nn.Linear, quantization: Quantization, keep_wide: bool, *, cuda: bool = False) -> nn.Module:
    packable = packs(linear.weight.dtype, linear.weight.device)
    even = linear.out_features % ALIGNMENT == 0 and linear.in_features % layers.GROUP == 0
    match quantization:
        case Quantization.FLOAT16 if not linear.weight.abs().max() > torch.finfo(torch.float16).max:
            return layers.HalfLinear(linear)
        case Quantization.INT4 if even and cuda:
            return layers.CudaInt4Linear(linear)
        case Quantization.FP8 if linear.out_features % ALIGNMENT == linear.in_features % ALIGNMENT == 0:
            return layers.Fp8Linear(linear)
        case Quantization.INT4 if even:
            return layers.Int4Linear(linear, keep_wide=keep_wide and packable)
        case Quantization.INT8 if even:
            return layers.Int8Linear(linear, keep_wide=keep_wide and packable)
    return layers.PackedLinear(linear) if packable else linear


MADV_COLLAPSE = 25  # Linux 6.1

SIZE_FILE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")  # bytes


def move_weights(network: nn.Module) -> None:
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
    """Of `size` bytes, with small neighbours."""
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
