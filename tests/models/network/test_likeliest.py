"""The likeliest tokens' logits against sums in float64."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from models.network.decoder.decoder import Decoder
from models.network.likeliest import BLOCK, LIKELIEST, find_likeliest, find_peaks, sharpen
from models.network.loader import load
from models.network.packing import packs
from models.network.quantization import Kernels
from tests.architectures import GROUPED, build


def rounded_head(rows: int, vocab: int = 3000, width: int = 96) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of a head in bfloat16, its inputs and its weight."""
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, width, generator=generator).bfloat16()
    weight = torch.randn(vocab, width, generator=generator).bfloat16()
    return (hidden.double() @ weight.double().T).bfloat16().float(), hidden, weight


@given(rows=st.integers(0, 4), vocab=st.integers(1, 40 * BLOCK), count=st.integers(1, 20), seed=st.integers(0, 99))
def test_the_likeliest_are_those_of_a_search_in_all(rows: int, vocab: int, count: int, seed: int) -> None:
    logits = torch.rand(rows, vocab, generator=torch.Generator().manual_seed(seed))
    found = logits.gather(1, find_likeliest(logits, count))
    assert torch.equal(found, logits.topk(min(count, vocab), dim=-1).values)


@given(rows=st.integers(0, 4), vocab=st.integers(1, 5 * BLOCK), levels=st.integers(1, 400), seed=st.integers(0, 99))
def test_peaks_are_those_of_a_plain_search_among_equals_and_nans(rows: int, vocab: int, levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (rows, vocab), generator=generator).float()
    strange = torch.tensor([torch.nan, torch.inf, -torch.inf])[torch.randint(3, (rows, vocab), generator=generator)]
    logits = torch.where(torch.rand(rows, vocab, generator=generator) < 1 / BLOCK, strange, logits)
    peaks, tokens = find_peaks(logits)
    expected = logits.max(dim=-1)
    torch.testing.assert_close(peaks, expected.values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(tokens, expected.indices)


def test_the_likeliest_have_the_sums_of_full_precision_and_the_others_stay() -> None:
    rounded, hidden, weight = rounded_head(70)
    exact = (hidden.double() @ weight.double().T).float()
    found = sharpen(rounded.clone(), hidden, weight)
    changed = (found != rounded).sum(dim=-1)
    assert bool((changed <= LIKELIEST).all()) and int(changed.min()) > LIKELIEST // 2
    assert torch.equal(found.argmax(dim=-1), exact.argmax(dim=-1))
    assert not torch.equal(rounded.argmax(dim=-1), exact.argmax(dim=-1)), "some of the likeliest were equal"
    torch.testing.assert_close(found.amax(dim=-1), exact.amax(dim=-1), atol=1e-4, rtol=0)


def test_a_row_alone_has_the_bits_that_it_has_among_others() -> None:
    rounded, hidden, weight = rounded_head(70)
    together = sharpen(rounded.clone(), hidden, weight)
    for row in (0, 33, 69):
        one = slice(row, row + 1)
        assert torch.equal(sharpen(rounded[one].clone(), hidden[one], weight)[0], together[row])


@pytest.mark.skipif(not packs(torch.bfloat16, torch.device("cpu")), reason="this CPU does not multiply in bfloat16")
def test_a_decoder_in_bfloat16_tells_apart_what_its_head_would_round_to_one_number(tmp_path: Path) -> None:
    folder = build(tmp_path, "Llama", {**GROUPED, "tie_word_embeddings": True})
    network = load(folder, dtype="bfloat16", kernels=Kernels.TORCH).network
    assert isinstance(network, Decoder)
    logits = network.read(torch.arange(5, 25)[None])[0]
    sharp = (logits != logits.bfloat16()).sum(dim=-1)
    assert bool((sharp <= LIKELIEST).all()) and int(sharp.min()) > LIKELIEST // 2
