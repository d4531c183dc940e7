"""Steps that are launched before the tokens of the ones before them are read: every row's answer is what it is when
steps run one after another, whatever happens around it, and no launch waits for the device.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from engine.device import StepOutcome
from engine.forward import decode as decoding
from engine.kv.arena import KvArena
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.messages import BatchPolicy, Entry, FinishReason, Overflow, RowId, RowSpec, RowUpdate
from engine.row import Choice, Row
from engine.sampling import sampler as sampling
from engine.sampling.params import Grammar, GrammarKind
from engine.sampling.sampler import Chosen, Unread, sample
from engine.sampling.table import SamplingTable
from engine.transfer import Fetch
from models.network.kv_store import KvStore
from models.network.loader import LoadedModel, load
from models.network.quantization import Kernels
from models.text import Text
from tests.calls import Operations, note_calls
from tests.engine import rows as played
from tests.engine.rows import admitted, device_of, faulty, finish, lifecycle_of, row_of, spec, tokens_of, turns
from tests.tiny import Net

WISHES: list[dict[str, Any]] = [
    {},
    {"ignore_eos": False},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 1.5, "top_p": 0.9, "seed": 3, "logprobs": 2},
    {"temperature": 2.0, "top_k": 30, "min_p": 0.01, "seed": 8, "ignore_eos": False},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"temperature": 1.0, "seed": 4, "frequency_penalty": 1.5, "logit_bias": ((7, 3.0), (9, -2.0)), "logprobs": 0},
    {"temperature": 1.0, "seed": 9, "min_tokens": 5, "ignore_eos": False, "stop_token_ids": tuple(range(0, 300, 7))},
    {"logprobs": 3, "temperature": 1.0, "seed": 2, "stop": ("e", "th")},
    {"temperature": 1.0, "seed": 6, "grammar": Grammar(GrammarKind.REGEX, "[a-z ]{1,9}")},
]

Events = list[tuple[int, str, RowId]]


def job(row_id: RowId, length: int, max_tokens: int, wish: int) -> RowSpec:
    made = spec(row_id, length, max_tokens, **WISHES[wish])
    return replace(made, prompt=(5,) * min(length, 9) + made.prompt[9:])  # some begin alike


def play(
    net: tuple[LoadedModel, Text], jobs: list[RowSpec], events: Events, terms: list[BatchPolicy], **device: Any
) -> dict[RowId, list[RowUpdate]]:
    """The updates of each row; jobs come, are cancelled and paused at the turns that `events` tell."""
    lifecycle = lifecycle_of(*net, rows=4, chunk=16, prefixes=PrefixCache[RowKv](1 << 24, chunk=8), **device)
    updates: list[RowUpdate] = []
    for turn in range(1000):
        for at, what, row_id in events:
            if at == turn and what == "admit":
                lifecycle.table.admit([jobs[row_id]], terms[row_id])
            elif at == turn and what == "cancel":
                lifecycle.table.cancel([row_id])
            elif at == turn:
                lifecycle.table.pause([row_id])
        updates += turns(lifecycle)
        for handed_back in lifecycle.table.take_handed_back():
            lifecycle.table.admit([jobs[row_id] for row_id in handed_back.row_ids], terms[handed_back.row_ids[0]])
        if lifecycle.table.idle and turn > max(at for at, *_ in events):
            break
    assert lifecycle.table.idle
    return {one.row_id: [update for update in updates if update.row_id == one.row_id] for one in jobs}


def answers(updates: list[RowUpdate]) -> tuple[Any, ...]:
    """Tokens, text and end of a row; and its log-probabilities, which batches of other rows round otherwise."""
    ends = [(update.finish_reason, update.stop_reason) for update in updates if update.finish_reason is not None]
    told = [one for update in updates for one in update.logprobs]
    tokens = [token for update in updates for token in update.token_ids]
    text = "".join(update.text for update in updates)
    logprobs = [value for one in told for value in (one.logprob, *(value for _, value in one.top))]
    return tokens, text, ends, [one.token_id for one in told], logprobs


@st.composite
def plays(draw: st.DrawFn) -> tuple[list[RowSpec], Events, list[BatchPolicy]]:
    sizes = st.tuples(st.integers(1, 40), st.integers(1, 25), st.integers(0, len(WISHES) - 1))
    drawn = draw(st.lists(sizes, min_size=1, max_size=8))
    jobs = [job(row_id, *sizes) for row_id, sizes in enumerate(drawn)]
    jobs = [replace(one, priority=draw(st.integers(0, 1))) for one in jobs]
    events: Events = [(draw(st.integers(0, 30)), "admit", one.row_id) for one in jobs]
    some = st.tuples(st.integers(0, 40), st.sampled_from(["cancel", "pause"]), st.integers(0, len(jobs) - 1))
    events += draw(st.lists(some, max_size=3))
    terms = [BatchPolicy(entry=draw(st.sampled_from(Entry)), overflow=draw(st.sampled_from(Overflow))) for _ in jobs]
    return jobs, sorted(events), terms


@settings(max_examples=25, deadline=None, derandomize=True)  # batches round otherwise: one draw in 1e7 ends beside
@given(told=plays())
def test_every_answer_is_that_of_plain_steps(net: Net, told: tuple[list[RowSpec], Events, list[BatchPolicy]]) -> None:
    """Rows join, enter, end by text, by token, by length, and are cancelled, handed back and displaced meanwhile."""
    jobs, events, terms = told
    cancelled = {row_id for _, what, row_id in events if what == "cancel"}
    before, after = (play(net, jobs, events, terms, ahead=ahead, capacity=150) for ahead in (False, True))
    for one in jobs:
        expected, found = answers(before[one.row_id]), answers(after[one.row_id])
        if one.row_id in cancelled:  # a turn earlier or later
            shorter = min(len(expected[0]), len(found[0]))
            assert expected[0][:shorter] == found[0][:shorter]
        else:
            assert expected[:-1] == found[:-1]
            assert expected[-1] == pytest.approx(found[-1], abs=1e-4)


def test_batches_of_closed_slices_go_on_as_they_do_one_after_another(net: Net) -> None:
    """Rows that have ended keep their slots and run in vain; all that are left are handed back every five steps."""
    jobs = [job(row_id, 4 + 5 * row_id, 6 + 7 * row_id, row_id) for row_id in range(4)]
    lifecycles = (lifecycle_of(*net, capacity=400, rows=4, chunk=64, ahead=ahead) for ahead in (True, False))
    ahead, plain = (played.run_all(one, jobs, BatchPolicy(closed=True, iterations=5))[0] for one in lifecycles)
    assert tokens_of(ahead) == tokens_of(plain)


# What is under way when


Watched = Callable[..., tuple[Lifecycle[Row], list[str]]]


@pytest.fixture
def watched(net: Net, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Makes a lifecycle whose launches and reads are noted."""
    log = note_calls(monkeypatch, Chosen, "__init__", lambda _, table, rows, *more: f"launch {len(rows)}")
    note_calls(monkeypatch, Chosen, "read", lambda _: "read", into=log)

    def make(*specs: RowSpec, model: LoadedModel = net.model) -> tuple[Lifecycle[Row], list[str]]:
        lifecycle = admitted(lifecycle_of(model, net.text, capacity=400, rows=4, chunk=64, ahead=True), specs)
        lifecycle.turn()  # the prompts are read
        log.clear()
        return lifecycle, log

    return make


def test_a_step_is_launched_before_the_one_before_it_is_read(watched: Watched) -> None:
    lifecycle, log = watched(spec(0, max_tokens=5))
    finish(lifecycle)
    assert log == ["launch 1", *["launch 1", "read"] * 3, "read"]  # none after that of the last token


def test_a_row_that_ends_late_costs_one_row_step(watched: Watched, net: Net) -> None:
    (tokens,) = tokens_of(finish(watched(spec(0, max_tokens=12))[0])).values()
    stop = next(token for place, token in enumerate(tokens) if place >= 3 and token not in tokens[:place])
    lifecycle, _ = watched(spec(0, max_tokens=12, stop_token_ids=(stop,)), spec(1, max_tokens=12))
    wasted, updates = 0, 0
    while not lifecycle.table.idle:
        updates += len(lifecycle.turn())
        wasted += lifecycle.table.tally.invalid
    assert wasted == 1 and updates == tokens.index(stop) + 12


def test_a_row_with_a_grammar_is_read_before_the_next_step(watched: Watched) -> None:
    grammar = Grammar(GrammarKind.REGEX, "[a-z]{20}")
    lifecycle, log = watched(spec(0, max_tokens=4, grammar=grammar), spec(1, max_tokens=4))
    finish(lifecycle)
    assert log == ["launch 2", "read"] * 3


def test_a_step_ahead_for_which_there_is_no_memory_loses_no_token(watched: Watched, net: Net) -> None:
    specs = spec(0, max_tokens=8), spec(1, max_tokens=8)
    lifecycle, log = watched(*specs, model=played.short_in(net.model, KvArena, 3))
    expected = tokens_of(finish(watched(*specs)[0]))
    log.clear()
    assert tokens_of(finish(lifecycle)) == expected
    assert log[:6] == ["launch 2", "launch 2", "read", "launch 2", "read", "read"]
    assert not lifecycle.short


def test_a_row_that_computes_nan_fails_alone_and_none_of_it_stays(watched: Watched, tiny_model: LoadedModel) -> None:
    """Also where it leaves before that is read: K and V are finite whenever rows come and go."""
    holder: list[Lifecycle[Row]] = []

    def fault(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, KvArena):
            for place, row in enumerate(holder[0].device.batch.rows if holder else ()):
                if row.row_id == 1 and store.lengths[place] == 8:
                    store.buffers[0][:, place, :, store.end - 1] = math.nan
                    logits[place] = math.nan
        return logits

    for cancels in (False, True):
        lifecycle, _ = watched(*(spec(row_id) for row_id in range(3)), model=faulty(tiny_model, fault))
        holder[:] = [lifecycle]
        updates: list[RowUpdate] = []
        while device_of(lifecycle).batch.arena.lengths[1:2] != [8] and not lifecycle.table.idle:
            updates += turns(lifecycle)
        if cancels:
            lifecycle.table.cancel([1])
        updates += finish(lifecycle)
        assert (played.ends_of(updates).get(1) is FinishReason.ERROR) is not cancels
        expected = tokens_of(finish(watched(*(spec(row_id) for row_id in range(3)))[0]))
        assert {row_id: tokens_of(updates)[row_id] for row_id in (0, 2)} == {one: expected[one] for one in (0, 2)}


# The sampler


KINDS = ("item", "_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal", "_unique2", "bincount")


def waits(function: Any, args: Any) -> list[str]:
    """Whether a host would wait for a device, which tells it a number, or a shape."""
    name = function.overloadpacket.__name__
    parts = args[1] if name.startswith("index") and isinstance(args[1], list) else ()
    by_mask = any(one is not None and one.dtype is torch.bool for one in parts)
    return [name] if name in KINDS or by_mask else []


def logits_of(rows: int, vocab: int, seed: int, *, flat: bool = False) -> Tensor:
    drawn = torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed))
    return drawn * (0.1 if flat else 3.0)


def rows_that_have_said(text: Text, seed: int) -> list[Row]:
    """A row for each wish but the grammar, with some tokens generated."""
    wishes = ({"temperature": 0.0, **wish} for wish in WISHES if "grammar" not in wish)
    rows = [row_of(text, (5, 6, 7, 5), **wish) for wish in wishes]
    chance = random.Random(seed)
    for row in rows:
        for _ in range(chance.randrange(1, 6)):
            row.accept(Choice(chance.choice([5, 6, 40, 41])))
    return rows


@pytest.mark.parametrize("vocab", [320, 5000])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_tokens_that_the_host_lacks_count_all_the_same(tiny_text: Text, vocab: int, flat: bool, seed: int) -> None:
    """Every second row's newest token is known on the device alone; flat distributions keep more than the likeliest."""
    logits = logits_of(len(WISHES) - 1, vocab, seed, flat=flat)
    expected = sample(rows_that_have_said(tiny_text, seed), logits.clone())
    rows = rows_that_have_said(tiny_text, seed)
    newest = [row.generated.pop() if place % 2 else -1 for place, row in enumerate(rows)]
    for row in rows:
        row._said = None
    unread = Unread(torch.tensor(newest), frozenset(range(1, len(rows), 2)))
    with Operations(waits) as seen:
        chosen = Chosen(SamplingTable(), rows, logits.clone(), unread)
    assert seen.found == []
    assert chosen.read() == expected


def test_a_draw_that_the_device_could_not_settle_is_made_anew_by_the_host(tiny_text: Text) -> None:
    """More such rows than a part of the batch: the token on the device is then not the row's."""
    rows = [row_of(tiny_text, temperature=1.0, top_p=0.9, seed=seed, logprobs=1) for seed in range(24)]
    logits = logits_of(24, 5000, 0, flat=True)
    chosen = Chosen(SamplingTable(), rows, logits.clone(), Unread(torch.empty(0)))
    found = chosen.read()
    assert chosen.redrawn and found == sample(rows, logits.clone())
    assert [one.token_id for one in found if isinstance(one, Choice)] != chosen.tokens.tolist()


def test_a_step_fed_a_token_drawn_anew_is_undone(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the device had been wrong in every third step."""
    jobs = [spec(row_id, max_tokens=14, temperature=1.0, top_p=0.9, seed=row_id) for row_id in range(3)]
    expected = tokens_of(finish(watched(*jobs)[0]))
    calls = iter(range(1000))

    def choose_wrong(*asked: Any) -> Chosen:
        chosen = Chosen(*asked)
        if asked[-1] is not None and next(calls) % 3 == 1:
            chosen.tokens = (chosen.tokens + 1) % 300
            chosen.redrawn = True
        return chosen

    monkeypatch.setattr(sampling, "Chosen", choose_wrong)
    assert tokens_of(finish(watched(*jobs)[0])) == expected


@pytest.fixture(scope="module")
def torch_model(tiny_folder: Path) -> LoadedModel:
    """The tiny network on torch's kernels, which are those of a GPU."""
    return load(tiny_folder, dtype="float32", kernels=Kernels.TORCH)


def play_all(model: LoadedModel, text: Text) -> None:
    """Rows of all wishes, which come and go."""
    jobs = [job(row_id, 5 + 3 * row_id, 6 + row_id, row_id) for row_id in range(len(WISHES) - 1)]
    events: Events = [(2 * one.row_id, "admit", one.row_id) for one in jobs]
    play((model, text), jobs, events, [BatchPolicy()] * len(jobs), ahead=True, capacity=400)


def test_no_launch_waits(torch_model: LoadedModel, tiny_text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the pass, nor its inputs, nor the choice of tokens, with rows that come and go."""
    launch, found = decoding.Decode._launch, []

    def watched_launch(self: decoding.Decode, *unread: Any) -> Any:
        with Operations(waits) as seen:
            step = launch(self, *unread)
        found.append(seen.found)
        return step

    monkeypatch.setattr(decoding.Decode, "_launch", watched_launch)
    play_all(torch_model, tiny_text)
    assert len(found) > 10 and not any(found)


def test_a_step_waits_once(torch_model: LoadedModel, tiny_text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the launch of the next one, and rows that come and go."""
    step, reads, counts = decoding.Decode.step, note_calls(monkeypatch, Fetch, "read", lambda _: None), list[int]()

    def counted_step(self: decoding.Decode) -> StepOutcome[Row]:
        before = len(reads)
        taken = step(self)
        counts.append(len(reads) - before)
        return taken

    monkeypatch.setattr(decoding.Decode, "step", counted_step)
    play_all(torch_model, tiny_text)
    assert len(counts) > 10 and set(counts) == {1}
