"""Builds of the compiled pass, and its structures in ctypes (pass.h)."""

import ctypes
import logging
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

log = logging.getLogger(__name__)

AVX512 = ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq")

BUILDS = {
    "amx": (*AVX512, "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"),
    "avx512_bf16": (*AVX512, "avx512_vnni", "avx512_bf16"),
    "avx512": AVX512,
    "avx2": ("avx2", "fma3"),
}  # fastest first, with required CPU capabilities in torch's words


class MatrixFields(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("weight", "bias", "scales")),
        *((name, c_int32) for name in ("outputs", "k", "bits")),
    ]


class LayerFields(Structure):
    _fields_ = [
        *((name, MatrixFields) for name in ("qkv", "out", "gate_up", "down")),
        *((name, c_void_p) for name in ("before", "between", "head_norm")),
        ("turns", c_int32),
    ]


class NetworkFields(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("layers", "width", "heads", "kv_heads", "head_dim", "inner", "vocabulary")),
        *((name, c_int32) for name in ("bf16_cells", "bf16_weights")),
        *((name, c_float) for name in ("offset", "head_offset", "attention_scale", "embedding_scale", "logits_scale")),
        ("layer", POINTER(LayerFields)),
        ("head", MatrixFields),
        *((name, c_void_p) for name in ("embeddings", "norm", "rotations")),
    ]


class PassFields(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("tokens", "selected")),
        *((name, c_void_p) for name in ("token", "position", "row", "column", "begin", "valid")),
        ("valid_stride", c_int64),
        *((name, c_void_p) for name in ("keys", "values")),
        *((name, c_int64) for name in ("layer_stride", "row_stride", "head_stride")),
        *((name, c_void_p) for name in ("select", "logits")),
        ("logits_stride", c_int64),
    ]


@dataclass(frozen=True, slots=True)
class Library:
    build: str
    lanes: int  # of a vector; a panel has twice as many outputs
    # pass.h, without the interpreter lock: lengthwise_open (None without memory or threads; structures must outlive
    # it), lengthwise_run (one at a time; nonzero without memory), lengthwise_close
    functions: ctypes.CDLL

    @property
    def computes_bfloat16(self) -> bool:
        return self.build in ("amx", "avx512_bf16")

    @property
    def multiplies_levels(self) -> bool:
        return bool(self.functions.lengthwise_multiplies_levels())


@cache
def find_library(build: str | None = None) -> Library | None:
    """The fastest usable build, or the named one, or None."""
    able = torch.cpu.get_capabilities()
    for name, needed in BUILDS.items():
        if build not in (None, name) or not all(able.get(one) for one in needed):
            continue
        for suffix in EXTENSION_SUFFIXES:
            path = Path(__file__).with_name(f"_{name}{suffix}")
            if path.exists() and (library := _load(name, path)) is not None:
                return library
    return None


def _load(build: str, path: Path) -> Library | None:
    """None for another source version, or where the system keeps the build's registers."""
    functions = ctypes.CDLL(str(path))
    sizes = [ctypes.sizeof(one) for one in (NetworkFields, LayerFields, PassFields)]
    try:
        functions.lengthwise_sizes.restype = c_int64
        current = functions.lengthwise_sizes() == (sizes[0] * 1000 + sizes[1]) * 1000 + sizes[2]
        permitted = bool(functions.lengthwise_permitted())
    except AttributeError:  # of a function that the build lacks
        current = permitted = False
    if not current:
        log.warning("%s was compiled from another version of this server's source: install again", path.name)
        return None
    if not permitted:
        log.warning("%s is left out: this system gives no process the registers that it needs", path.name)
        return None
    functions.lengthwise_lanes.restype = c_int32
    functions.lengthwise_open.argtypes, functions.lengthwise_open.restype = [c_void_p, c_int32], c_void_p
    functions.lengthwise_run.argtypes, functions.lengthwise_run.restype = [c_void_p, c_void_p], c_int32
    functions.lengthwise_close.argtypes = [c_void_p]
    return Library(build, functions.lengthwise_lanes(), functions)
