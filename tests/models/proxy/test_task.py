"""Targets of the proxy's tasks, and the meaning of their outputs, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from models.proxy.task import ProxyTask, Scale, at_ranks, class_of, lengths_of, loss, quantile_edges, targets
from server.cli.commands.train import TASKS

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
