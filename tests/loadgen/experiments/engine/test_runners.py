"""The engines that are compared, the rows that they are compared on, their rounds, and the floor of a step."""

import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.messages import RowSpec
from loadgen.experiments.engine.bench import BenchTurn, Lengthwise, Run, contest, draw_rows, generate
from loadgen.experiments.engine.setup import Floor, Subject, load_plain, measure_bandwidth, weight_bytes
from models.errors import UserError
from models.network.loader import LoadedModel
from models.network.packing import pack
from models.network.quantization import Quantization
from models.text import Text
from tests.engine.rows import lifecycle_of


def ticking() -> Callable[[], float]:
    """Seconds: 0, 1, 2, and so on."""
    count = itertools.count()
    return lambda: float(next(count))


def subject_of(model: LoadedModel, text: Text) -> Subject:
    return Subject(model, text, partial(load_plain, model))


TWO_ROWS = draw_rows(random.Random(0), 50, [(2, 3), (3, 5)])


class Scripted:
    """Takes so many seconds a run, in turn; notes each run in a common log."""

    def __init__(self, name: str, log: list[str], seconds: Sequence[float], error: Exception | None = None) -> None:
        self.name = name
        self._log = log
        self._seconds = list(seconds)
        self._error = error

    def run(self, rows: Sequence[RowSpec]) -> BenchTurn:
        self._log.append(self.name)
        if self._error is not None:
            raise self._error
        return BenchTurn(self._seconds.pop(0), (0.1, 0.3, 0.2), tuple(row.sampling.max_tokens for row in rows))


def test_rounds_interleave_and_the_first_does_not_count() -> None:
    log: list[str] = []
    engines = {"a": Scripted("a", log, [99, 1, 2, 4]).run, "b": Scripted("b", log, [99, 2, 2, 2]).run}
    a, b = contest(engines, lambda _: TWO_ROWS, 3).values()
    assert log == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert a.rates == [8, 4, 2] and a.rate == 4 and b.rates == [4, 4, 4]
    assert a.steps == [0.2] * 3 and a.trouble is None


def test_who_cannot_run_says_why_once_and_the_others_go_on() -> None:
    log: list[str] = []
    engines = {"a": Scripted("a", log, [1, 1, 1]).run, "b": Scripted("b", log, [], OSError("no kernel")).run}
    a, b = contest(engines, lambda _: TWO_ROWS, 2).values()
    assert len(a.rates) == 2 and b.rates == []
    assert b.trouble == "OSError: no kernel" and log.count("b") == 1


def test_an_answer_of_another_length_is_no_result() -> None:
    lazy = contest({"lazy": lambda rows: BenchTurn(1.0, (), (3, 4))}, lambda _: TWO_ROWS, 1)["lazy"]
    assert lazy.rates == [] and "1 of 2 answers" in (lazy.trouble or "")


def test_a_step_reads_weights_and_the_live_k_and_v_once() -> None:
    floor = Floor(bandwidth=1000.0, weight_bytes=500, kv_bytes_per_token=10)
    assert floor.step(rows=2, input_len=20, output_len=10) == pytest.approx((500 + 2 * 25 * 10) / 1000)


def network(vocab: int, hidden: int, wide: int, *, tied: bool = False) -> LlamaForCausalLM:
    others: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "tie_word_embeddings": tied}
    config = LlamaConfig(vocab_size=vocab, hidden_size=hidden, intermediate_size=wide, **others)
    return LlamaForCausalLM(config)


def test_a_table_that_is_only_looked_up_is_not_read() -> None:
    table = 50 * 8 * 4
    tied, untied = (network(50, 8, 16, tied=tied) for tied in (True, False))
    assert sum(weight.nbytes for weight in untied.parameters()) == weight_bytes(untied) + table
    assert weight_bytes(tied) == weight_bytes(untied) == sum(weight.nbytes for weight in tied.parameters())


@pytest.mark.parametrize(("quantization", "size"), [("none", 4.0), ("float16", 2.0), ("int8", 1.0 + 2 / 32)])
def test_weights_count_as_they_are_kept(quantization: str, size: float) -> None:
    packed, norms = network(64, 32, 32).requires_grad_(False), 3 * 32 * 4
    pack(packed, Quantization(quantization))
    assert weight_bytes(packed) == (7 * 32 * 32 + 64 * 32) * size + norms


def test_bandwidth_is_the_best_of_what_was_timed() -> None:
    # One tick each: a copy moves twice its bytes.
    assert measure_bandwidth(torch.device("cpu"), ticking(), size=4096) == 2 * 4096


ROWS = draw_rows(random.Random(0), 50, [(9, 5)] * 5)


@pytest.fixture(scope="module")
def plain(tiny_model: LoadedModel) -> PreTrainedModel:
    return load_plain(tiny_model)


@pytest.fixture
def engines(tiny_model: LoadedModel, tiny_text: Text, plain: PreTrainedModel) -> dict[str, Run]:
    ours = Lengthwise(subject_of(tiny_model, tiny_text), ticking())
    return {"lengthwise": ours.run, "generate": partial(generate, plain, clock=ticking())}


@pytest.mark.parametrize("name", ["lengthwise", "generate"])
def test_rows_have_what_they_asked_for_and_runs_can_be_repeated(engines: dict[str, Run], name: str) -> None:
    for _ in range(2):
        turn = engines[name](ROWS)
        assert turn.lengths == (5,) * 5
        assert turn.seconds > 0 and turn.steps and min(turn.steps) >= 0


def test_steps_are_those_between_tokens_and_turns_in_which_nothing_is_read(engines: dict[str, Run]) -> None:
    """For generate the clock is read at each of five steps, and once before and after all."""
    ours, generated = engines["lengthwise"](ROWS[:1]), engines["generate"](ROWS)
    assert (ours.seconds, generated.seconds, ours.steps, generated.steps) == (5, 5 + 1, (1.0,) * 4, (1.0,) * 4)


def test_a_row_that_no_memory_holds_is_told(tiny_model: LoadedModel, tiny_text: Text) -> None:
    small = Lengthwise(subject_of(tiny_model, tiny_text), _lifecycle=lifecycle_of(tiny_model, tiny_text, capacity=6))
    with pytest.raises(UserError, match="a row failed: "):
        small.run(ROWS)


def test_even_rows_have_prompts_of_their_own() -> None:
    rows = draw_rows(random.Random(0), 300, [(6, 3)] * 8)
    assert {(len(row.prompt), row.sampling.max_tokens) for row in rows} == {(6, 3)}
    assert len({row.prompt for row in rows}) == 8
