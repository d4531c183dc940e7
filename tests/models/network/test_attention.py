"""Attention against a plain loop in float64, for every way in which rows, groups and masks can be."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, strategies as st
from torch import Tensor, nn
from transformers import AttentionInterface

from models.network import attention, kv_adapter
from tests.models.network.runs import list_runs

MODULE = nn.Identity()
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """Random queries, keys and values, and what each query may read; every query may read something."""

    query: Tensor  # (rows, kv_heads * group, new, dim)
    key: Tensor  # (rows, kv_heads, columns, dim)
    value: Tensor
    mask: Tensor | None  # (rows or 1, 1, new, columns)


def random_case(seed: int, rows: int, kv_heads: int, group: int, new: int, columns: int, masks: int) -> Case:
    """With as many `masks` as given: one per row, one for all, or 0 for none."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, kv_heads * group, new, 8, generator=generator)
    key, value = torch.randn(2, rows, kv_heads, columns, 8, generator=generator).unbind()
    mask = torch.rand(masks, 1, new, columns, generator=generator) < 0.5
    mask[..., 0] |= ~mask.any(dim=-1)
    return Case(query, key, value, mask if masks else None)


@st.composite
def cases(draw: st.DrawFn, longest: int = 5) -> Case:
    rows, new = draw(st.integers(1, 4)), draw(st.integers(1, longest))
    masks = draw(st.sampled_from([0, 1, rows]))
    columns = draw(st.integers(1, 9)) if masks or new == 1 else new
    kv_heads, group, seed = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(0, 2**32))
    return random_case(seed, rows, kv_heads, group, new, columns, masks)


def naive(case: Case, scale: float) -> Tensor:
    """(rows, new, heads, dim), one query at a time."""
    rows, heads, new, dim = case.query.shape
    group = heads // case.key.shape[1]
    out = torch.zeros(rows, new, heads, dim, dtype=torch.float64)
    for row, head, place in torch.cartesian_prod(*(torch.arange(size) for size in (rows, heads, new))).tolist():
        keys, values = case.key[row, head // group].double(), case.value[row, head // group].double()
        readable = readable_columns(case, row, place)
        weights = (keys[readable] @ case.query[row, head, place].double() * scale).softmax(dim=0)
        out[row, place, head] = weights @ values[readable]
    return out


def readable_columns(case: Case, row: int, place: int) -> Tensor:
    columns = torch.arange(case.key.shape[2])
    if case.mask is not None:
        return columns[case.mask[row % case.mask.shape[0], 0, place]]
    return columns if case.query.shape[2] == 1 else columns[: place + 1]


@given(case=cases(), scale=st.sampled_from([None, 0.1, 1.0]))
def test_attention_equals_a_plain_loop(case: Case, scale: float | None) -> None:
    found, weights = attention.masked_attention(MODULE, case.query, case.key, case.value, case.mask, scaling=scale)
    assert weights is None
    expected = naive(case, 1 / math.sqrt(8) if scale is None else scale)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


@given(case=cases())
def test_folding_the_group_into_the_query_axis_changes_nothing(case: Case) -> None:
    """The path of all that has a mask on CUDA, run here on the CPU."""
    assume(case.mask is not None or case.query.shape[2] == 1)
    arguments = (case.query, case.key, case.value, case.mask, 0.3)
    torch.testing.assert_close(attention._folded(*arguments), attention._grouped(*arguments), atol=1e-6, rtol=1e-5)


@given(case=cases(longest=1))
def test_products_of_batches_of_matrices_are_the_fused_kernel(case: Case) -> None:
    assume(case.mask is not None)
    mask = attention.prepare_mask(case.mask, 1, torch.float32, case.key.shape[1])
    assert isinstance(mask, Tensor)
    arguments = (case.query, case.key, case.value)
    found, expected = attention._multiply_batches(*arguments, mask, 0.3), attention._grouped(*arguments, case.mask, 0.3)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_many_cells_in_bfloat16_are_read_beside_their_gaps_and_without_them() -> None:
    """K and V without gaps, as a tight arena has them, and the columns of a wider one."""
    case = random_case(seed=3, rows=8, kv_heads=3, group=3, new=1, columns=70, masks=8)
    query, key, value = (each.bfloat16() for each in (case.query, case.key, case.value))
    mask = attention.prepare_mask(case.mask, 1, torch.bfloat16, 3)
    wide = F.pad(key, (0, 0, 0, 3))[:, :, :70]
    expected = naive(case, 0.3).transpose(1, 2)
    for keys in (key, wide):
        found = attention.attend(query, keys, value, mask, 0.3)
        torch.testing.assert_close(found.double(), expected, atol=4e-2, rtol=4e-2)


@st.composite
def ragged(draw: st.DrawFn) -> tuple[list[int], list[int], int, int]:
    """Lengths of rows and what they begin with of memory, rows' pitch, and the columns that are there before them."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    front, behind = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    pitch = front + max(lengths) + behind
    return lengths, [row * pitch + pitch - behind - length for row, length in enumerate(lengths)], pitch, behind


@given(batch=ragged(), kv_heads=st.integers(1, 3), group=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_rows_read_as_runs_have_the_bits_that_they_have_under_a_mask(
    batch: tuple[list[int], list[int], int, int], kv_heads: int, group: int, seed: int
) -> None:
    lengths, starts, pitch, behind = batch
    rows, longest = len(lengths), max(lengths)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(2, rows * pitch, kv_heads, 8, generator=generator)
    query = torch.randn(rows, kv_heads * group, 1, 8, generator=generator)
    columns = slice(pitch - behind - longest, pitch - behind)
    keys, values = tokens.view(2, rows, pitch, kv_heads, 8).transpose(2, 3)[:, :, :, columns]
    valid = torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]
    mask = attention.prepare_mask(valid[:, None, None], 1, torch.float32, kv_heads)
    expected = attention.attend(query, keys, values, mask, 0.3)
    gather = attention.gather_attention
    runs = [list_runs(starts, lengths, bound, gather, CPU) for bound in (longest, longest + 30)]
    exact, loose = (attention.attend(query, tokens[0], tokens[1], run, 0.3) for run in runs)
    assert torch.equal(exact, expected)
    torch.testing.assert_close(loose, expected, atol=1e-6, rtol=1e-5)


def test_flash_attention_is_called_as_torch_declares_it() -> None:
    """On a CPU its kernel is missing; the arguments are checked against the schema of the operation all the same."""
    runs = list_runs([0, 9], [4, 1], 9, attention.flash_attention, torch.device("meta"))
    query, key = torch.empty(2, 4, 64, device="meta"), torch.empty(18, 2, 64, device="meta")
    assert attention.flash_attention(query, key, key, runs, 0.3).shape == query.shape


FLASH = [
    (torch.bfloat16, 128, (9, 0), True),
    (torch.float16, 64, (8, 0), True),
    (torch.float32, 128, (9, 0), False),
    (torch.bfloat16, 100, (9, 0), False),
    (torch.bfloat16, 512, (9, 0), False),
    (torch.float16, 64, (7, 5), False),
]


@pytest.mark.parametrize(("dtype", "head_dim", "capability", "there"), FLASH)
def test_flash_attention_is_for_short_numbers_and_heads_on_recent_devices(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int, capability: tuple[int, int], there: bool
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability)
    monkeypatch.setattr("torch.backends.cuda.is_flash_attention_available", lambda: True)
    assert attention.has_flash(dtype, head_dim, torch.device("cuda:0")) is there
    assert not attention.has_flash(dtype, head_dim, torch.device("cpu"))
    monkeypatch.setattr("torch.version.hip", "6.4")
    assert not attention.has_flash(dtype, head_dim, torch.device("cuda:0"))


def test_triangles_of_a_prompt_are_made_once_a_pass() -> None:
    case = random_case(seed=4, rows=1, kv_heads=1, group=2, new=150, columns=150, masks=0)
    mask = attention.prepare_mask(None, 150, torch.float32, 1)
    assert isinstance(mask, attention.Causal)
    first = attention.attend(case.query, case.key, case.value, mask, 0.3)
    triangles = dict(mask._triangles)
    assert sorted(triangles) == [128, 150]
    assert torch.equal(attention.attend(case.query, case.key, case.value, mask, 0.3), first)
    assert all(mask._triangles[columns] is triangle for columns, triangle in triangles.items())


@pytest.mark.parametrize("extra", ["softcap", "s_aux", "position_bias"])
def test_extras_that_would_be_left_out_are_refused(extra: str) -> None:
    case = random_case(seed=0, rows=1, kv_heads=1, group=1, new=1, columns=1, masks=0)
    given_extra = {extra: 30.0 if extra == "softcap" else torch.zeros(1)}
    with pytest.raises(ValueError, match="not supported"):
        attention.masked_attention(MODULE, case.query, case.key, case.value, None, **given_extra)  # type: ignore[arg-type]


def test_registering_twice_changes_nothing() -> None:
    assert kv_adapter.register() == kv_adapter.register() == kv_adapter.ATTENTION
    known = AttentionInterface()  # type: ignore[no-untyped-call]
    assert known[kv_adapter.ATTENTION] is attention.masked_attention
