"""The proxy on an encoder of 16 dimensions: what it reads, that it learns, and that it comes back from disk."""

import math
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from models.errors import CatalogError
from models.proxy.network import HEAD, MANIFEST, Proxy, ProxyManifest, groups, load, load_encoder, read_manifest, save
from models.proxy.task import ProxyTask, Scale, at_ranks, class_of, lengths_of, loss, quantile_edges, targets
from models.proxy.training import TextRows, TrainingOptions, TrainingStep, train
from server.cli.commands.train import TASKS
from tests.models import tiny_embedder

TEACHING = TrainingOptions(epochs=6, head_epochs=8, encoder_rate=3e-3, head_rate=3e-3, patience=6)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT with 32 positions, whose words are letters."""
    torch.manual_seed(0)
    return tiny_embedder.build(tmp_path_factory.mktemp("models") / "embedder") / "bert"


def lesson(rows: int, seed: int) -> TextRows:
    """Texts and lengths to learn from: long answers to texts with an a, short ones to all others."""
    rng = random.Random(seed)
    texts = [" ".join([rng.choice("ab"), *(rng.choice("cdef") for _ in range(rng.randint(2, 6)))]) for _ in range(rows)]
    return TextRows(texts, np.array([(100 if "a" in text else 10) + rng.randint(0, 4) for text in texts], np.float32))


LEARN, WATCH, TEST = lesson(160, 0), lesson(40, 1), lesson(40, 2)


def fresh(encoder: Path, task: ProxyTask = ProxyTask.REGRESSION_L1) -> Proxy:
    return Proxy.fresh(encoder, task, Scale.of(task, LEARN.lengths), max_tokens=32)


@pytest.fixture(scope="module")
def taught(encoder: Path) -> Proxy:
    proxy = fresh(encoder)
    train(proxy, LEARN, WATCH, TEACHING)
    return proxy


@pytest.mark.parametrize("task", [ProxyTask.REGRESSION_L1, ProxyTask.REGRESSION_MSE, ProxyTask.BINARY])
def test_it_learns_what_can_be_told_from_the_text(encoder: Path, task: ProxyTask) -> None:
    proxy, steps = fresh(encoder, task), list[TrainingStep]()
    history = train(proxy, LEARN, WATCH, TEACHING, steps.append)
    assert min(history.both) < history.start / 2 and min(history.head) <= min(history.both)
    assert np.abs(proxy.predict(TEST.texts) - TEST.lengths).max() < 20
    assert [step.done for step in steps if step.phase == 1] == list(range(1, 61)), "6 epochs of 10 batches"
    assert [step.done for step in steps if step.phase == 2] == list(range(1, len(history.head) + 1))


def test_a_ranking_says_the_lengths_of_its_ranks(encoder: Path) -> None:
    """Its scores are of no scale; what stands for them are the lengths that it has learned from."""
    proxy = fresh(encoder, ProxyTask.RANKING)
    history = train(proxy, LEARN, WATCH, TEACHING)
    assert min(history.head) < history.start
    assert np.abs(proxy.predict(TEST.texts) - TEST.lengths).max() < 20


def test_the_second_phase_leaves_the_encoder_as_it_is(encoder: Path) -> None:
    proxy = fresh(encoder)
    before = {name: value.clone() for name, value in proxy.network.state_dict().items()}
    train(proxy, LEARN, WATCH, replace(TEACHING, epochs=0))
    same = {name: torch.equal(value, before[name]) for name, value in proxy.network.state_dict().items()}
    assert {name for name, equal in same.items() if not equal} == {name for name in same if name.startswith("head.")}


def test_the_first_phase_teaches_the_encoder_too(taught: Proxy, encoder: Path) -> None:
    before, after = fresh(encoder).network.encoder, taught.network.encoder
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    assert sum(not torch.equal(one, other) for one, other in pairs) > 5


def test_equal_seeds_teach_the_same_and_leave_others_random_numbers_alone(encoder: Path) -> None:
    proxies = [fresh(encoder) for _ in range(2)]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    for proxy in proxies:
        train(proxy, LEARN, WATCH, replace(TEACHING, epochs=1, head_epochs=2))
    assert torch.equal(torch.rand(3), expected)
    one, other = (proxy.network.state_dict() for proxy in proxies)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_it_stops_when_what_is_held_out_gets_no_better_and_keeps_the_best(encoder: Path) -> None:
    """Answers that the text says nothing of, so that learning by heart can only harm."""
    rng = random.Random(3)
    texts = LEARN.texts, WATCH.texts
    learn, watch = (TextRows(own, np.array([rng.choice((5, 50)) for _ in own], np.float32)) for own in texts)
    task = ProxyTask.REGRESSION_MSE
    proxy = Proxy.fresh(encoder, task, Scale.of(task, learn.lengths), max_tokens=32)
    options = replace(TEACHING, epochs=30, patience=1, head_epochs=0)
    history = train(proxy, learn, watch, options)
    assert len(history.both) < 30
    again = train(proxy, learn, watch, replace(options, epochs=0))
    assert again.start == pytest.approx(min(history.start, *history.both))


def test_nothing_to_learn_from_is_an_error(encoder: Path) -> None:
    nothing = TextRows((), np.empty(0, np.float32))
    for learn, watch in ((nothing, WATCH), (LEARN, nothing)):
        with pytest.raises(ValueError, match="no rows to learn from, or none are held out"):
            train(fresh(encoder), learn, watch, TEACHING)


def test_a_long_conversation_is_read_from_its_end(encoder: Path) -> None:
    """32 positions: the marks, and the last 30 words."""
    reader = fresh(encoder).reader
    [short, long] = reader.read(["a b", " ".join("c" * 50 + "d" * 29 + "e")])
    assert reader.tokenizer.convert_ids_to_tokens(short) == ["[CLS]", "a", "b", "[SEP]"]
    assert reader.tokenizer.convert_ids_to_tokens(long) == ["[CLS]", *"d" * 29, "e", "[SEP]"]


@pytest.mark.parametrize(("asked", "read"), [(512, 32), (10, 10)])
def test_it_reads_no_more_than_the_encoder_has_positions_for(encoder: Path, asked: int, read: int) -> None:
    assert load_encoder(encoder, asked)[1].max_tokens == read


def test_a_prediction_does_not_depend_on_what_is_predicted_beside_it(taught: Proxy) -> None:
    texts = ["", "a c", *TEST.texts, " ".join("b" * 40)]
    alone = [float(taught.predict([text])[0]) for text in texts]
    assert taught.predict(texts).tolist() == pytest.approx(alone, rel=1e-4)


def test_groups_have_similar_lengths_and_no_more_cells_than_allowed() -> None:
    rows = [[0] * length for length in (5, 1, 9, 2, 30)]
    assert list(groups(rows, 10)) == [[1, 3], [0], [2], [4]]


def test_it_comes_back_from_disk_the_same(taught: Proxy, tmp_path: Path) -> None:
    folder = tmp_path / "proxies" / "model"
    for rows in (1, 160):  # the second takes the place of the first
        save(folder, taught, encoder="tiny", rows=rows)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".safetensors"}
    about = read_manifest(folder)
    assert (about.task, about.encoder, about.rows) == (ProxyTask.REGRESSION_L1, "tiny", 160)
    assert load(folder).predict(TEST.texts).tolist() == taught.predict(TEST.texts).tolist()
    packed = load(folder).pack().predict(TEST.texts)
    assert packed.tolist() == pytest.approx(taught.predict(TEST.texts).tolist(), rel=5e-3)  # weights may have 16 bits


def test_what_is_no_proxy_is_refused_with_the_remedy(taught: Proxy, tmp_path: Path) -> None:
    remedy = "`lengthwise train --predictor proxy`"
    with pytest.raises(CatalogError, match=f"there is no proxy at .*{remedy}"):
        load(tmp_path / "nowhere")
    folder = tmp_path / "model"
    save(folder, taught, encoder="tiny", rows=160)
    about = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ProxyManifest)
    (folder / MANIFEST).write_bytes(msgspec.json.encode(replace(about, format=0)))
    with pytest.raises(CatalogError, match=f"another version .*{remedy}"):
        load(folder)
    (folder / MANIFEST).write_text("{}")
    with pytest.raises(CatalogError, match=f"is no proxy of {remedy}"):
        load(folder)
    (folder / MANIFEST).write_bytes(msgspec.json.encode(about))
    (folder / HEAD).write_bytes(b"nonsense")
    with pytest.raises(CatalogError, match=f"is damaged: make it anew with {remedy}"):
        load(folder)


def test_a_network_that_reads_forwards_only_is_no_encoder(tiny_folder: Path) -> None:
    with pytest.raises(CatalogError, match="its first token sees nothing of what comes after it"):
        load_encoder(tiny_folder, 32)


# Targets of the tasks, and the meaning of their outputs, by hand

TEN = np.arange(1, 11, dtype=np.float32)
"""Lengths 1 to 10: classes of three, two, two, two and one, with medians 2, 4.5, ..."""


def scale(task: ProxyTask) -> Scale:
    return Scale.of(task, TEN)


def test_the_flag_knows_every_task_and_begins_with_the_papers_choice() -> None:
    assert set(TASKS) == set(ProxyTask) and TASKS[0] == ProxyTask.REGRESSION_L1


def test_classes_are_cut_at_the_quarters_and_where_one_of_a_hundred_is_longer() -> None:
    edges = quantile_edges(TEN)
    assert edges == pytest.approx((3.25, 5.5, 7.75, 9.91))
    assert class_of(TEN, edges).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert class_of(np.array([2.0, 3.0], dtype=np.float32), [2.0, 3.0]).tolist() == [1, 2]


def test_a_scale_has_the_medians_of_the_classes_and_the_centre_of_its_loss() -> None:
    skewed = np.array([1, 2, 3, 4, 90], dtype=np.float32)
    centres = [Scale.of(task, skewed).centre for task in (ProxyTask.REGRESSION_L1, ProxyTask.REGRESSION_MSE)]
    assert centres == [3, 20]
    assert scale(ProxyTask.ORDINAL_L1).typical == (2.0, 4.5, 6.5, 8.5, 10.0)
    assert scale(ProxyTask.BINARY).edges == (5.5,) and scale(ProxyTask.BINARY).typical == (3.0, 8.0)


@pytest.mark.parametrize("task", [ProxyTask.CLASSIFICATION, ProxyTask.ORDINAL_L1, ProxyTask.ORDINAL_MSE])
def test_lengths_that_are_too_much_alike_make_no_classes(task: ProxyTask) -> None:
    alike = np.array([5, 5, 5, 5, 9], dtype=np.float32)
    with pytest.raises(ValueError, match="only . of 5 quantile classes"):
        Scale.of(task, alike)
    assert Scale.of(ProxyTask.REGRESSION_L1, alike).centre == 5


OUTPUTS = [
    (ProxyTask.REGRESSION_L1, [[0.0], [1.0], [-9.0]], [5.5, 5.5 + math.sqrt(8.25), 1.0]),
    (ProxyTask.CLASSIFICATION, [[0, 0, 3, 0, 0], [9, 0, 0, 0, 8]], [6.5, 2.0]),
    (ProxyTask.BINARY, [[0.0, 0.1], [1.0, 0.0]], [8.0, 3.0]),
    (ProxyTask.ORDINAL_L1, [[1.4], [1.6], [-3.0], [7.0]], [4.5, 6.5, 2.0, 10.0]),
]


@pytest.mark.parametrize(("task", "outputs", "lengths"), OUTPUTS)
def test_an_output_means_a_length(task: ProxyTask, outputs: list[list[float]], lengths: list[float]) -> None:
    assert lengths_of(task, scale(task), torch.tensor(outputs)).tolist() == pytest.approx(lengths)


def test_a_rankings_loss_is_the_chance_to_draw_the_shortest_first_each_time() -> None:
    """ListMLE by hand. Lengths 10, 20, 30 with odds 4, 2, 1: 4/7, then 2/3, then 1. Of two equal lengths each is drawn
    from all three, at 1/3 by equal odds, whichever stands first."""
    scores = -torch.tensor([1.0, 4.0, 2.0]).log()[:, None]
    found = float(loss(ProxyTask.RANKING, scores, torch.tensor([30.0, 10.0, 20.0])))
    assert found == pytest.approx((math.log(7 / 4) + math.log(3 / 2)) / 3)
    for lengths in ([5.0, 5.0, 9.0], [9.0, 5.0, 5.0]):
        found = float(loss(ProxyTask.RANKING, torch.zeros(3, 1), torch.tensor(lengths)))
        assert found == pytest.approx(2 * math.log(3) / 3)


def test_a_score_stands_for_the_length_of_its_rank() -> None:
    """Scores of 0 to 32 over lengths of 10, 20, ... 330: 1.5 lies midway between the second and the third; what is
    beyond all that was learned from counts as the least or the longest."""
    learnt = np.arange(10, 340, 10, dtype=np.float32)
    trained = replace(Scale.of(ProxyTask.RANKING, learnt), scores=at_ranks(np.arange(33, dtype=np.float32)))
    outputs = torch.tensor([[0.0], [1.5], [32.0], [99.0], [-5.0]])
    assert lengths_of(ProxyTask.RANKING, trained, outputs).tolist() == pytest.approx([10, 25, 330, 330, 10])


@pytest.mark.parametrize("task", [ProxyTask.REGRESSION_L1, ProxyTask.REGRESSION_MSE])
def test_a_regression_that_meets_its_targets_says_the_lengths(task: ProxyTask) -> None:
    wanted = targets(task, scale(task), TEN)
    assert lengths_of(task, scale(task), wanted[:, None]).tolist() == pytest.approx(TEN.tolist(), rel=1e-5)
    assert float(loss(task, wanted[:, None], wanted)) == 0.0


def test_losses_are_what_their_names_say() -> None:
    wanted, outputs = torch.tensor([0.0, 4.0]), torch.tensor([[1.0], [1.0]])
    assert float(loss(ProxyTask.ORDINAL_L1, outputs, wanted)) == 2.0
    assert float(loss(ProxyTask.ORDINAL_MSE, outputs, wanted)) == 5.0
    even = torch.zeros(1, 5)
    assert float(loss(ProxyTask.CLASSIFICATION, even, torch.tensor([3]))) == pytest.approx(math.log(5))
    assert targets(ProxyTask.BINARY, scale(ProxyTask.BINARY), TEN).tolist() == [0] * 5 + [1] * 5
    assert targets(ProxyTask.ORDINAL_MSE, scale(ProxyTask.ORDINAL_MSE), TEN).dtype is torch.float32
