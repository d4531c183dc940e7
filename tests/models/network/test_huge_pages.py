"""Which memory is moved into huge pages, and that nothing depends on it."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from models.network import packing
from models.network.kv_store import PassingStore
from models.network.loader import load
from models.network.packing import MADV_COLLAPSE, find_pages, move_weights, pack, packs
from tests import tiny

SIZE = 4096


@pytest.fixture(params=[0, -1])
def advice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What the kernel was advised, whatever it answers."""
    given: list[tuple[int, int, int]] = []

    def note(start: int, length: int, advice: int) -> int:
        given.append((start, start + length, advice))
        return int(request.param)

    madvise = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(note)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(madvise=madvise))
    return given


@pytest.fixture
def size_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "size"
    path.write_text(f"{SIZE}\n")
    monkeypatch.setattr(packing, "SIZE_FILE", path)
    return path


def test_pages_hold_each_weight_and_none_is_told_twice() -> None:
    memory = torch.zeros(100 * SIZE, dtype=torch.uint8)
    at = -memory.data_ptr() % SIZE  # the first page that begins in it
    network = nn.Module()
    places = {"a": (5, 10), "b": (SIZE - 1, 2), "c": (9 * SIZE, SIZE), "d": (12 * SIZE + 1, SIZE), "e": (0, 0)}
    for name, (first, count) in places.items():
        network.register_buffer(name, memory[at + first : at + first + count])
    network.meta = torch.empty(5, device="meta")
    start = memory.data_ptr() + at
    assert find_pages(network, SIZE) == [start + page * SIZE for page in (0, 1, 9, 12, 13)]


@pytest.mark.skipif(not packs(torch.float32, torch.device("cpu")), reason="this build of torch lacks the kernels")
def test_packed_weights_are_found_where_the_plain_ones_are_gone() -> None:
    network = nn.Sequential(nn.Linear(64, 48, bias=False).requires_grad_(False))
    pack(network)
    packed = network[0].packed
    assert isinstance(packed, torch.Tensor) and packed.is_mkldnn
    start, count = torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed)
    assert find_pages(network, 1) == list(range(start, start + count)) and count >= 64 * 48 * 4


@pytest.mark.usefixtures("size_file")
def test_loading_advises_the_weights_pages(advice: list[tuple[int, int, int]], tmp_path: Path) -> None:
    network = load(tiny.build(tmp_path / "tiny")).network
    assert advice == [(page, page + SIZE, MADV_COLLAPSE) for page in find_pages(network, SIZE)] != []


def test_a_system_without_huge_pages_is_asked_for_none(size_file: Path, advice: list[tuple[int, int, int]]) -> None:
    size_file.unlink()
    move_weights(nn.Linear(2, 2))
    assert not advice


def test_what_a_network_computes_stays(tmp_path: Path) -> None:
    model = load(tiny.build(tmp_path / "tiny"))
    tokens = torch.arange(5, 25)[None]

    def read() -> torch.Tensor:
        return model.forward(tokens, torch.arange(20)[None], None, PassingStore())

    before = read()
    move_weights(model.network)
    assert torch.equal(read(), before)
