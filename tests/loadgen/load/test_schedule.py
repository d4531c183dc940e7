"""When requests are sent, and as which bodies."""

import math

import numpy as np
import orjson
import pytest
from scipy import stats

from loadgen.client.request import CHAT, COMPLETIONS, LoadPrompt, RequestForm
from loadgen.load import arrival_times, schedule
from loadgen.options import Arriving
from models.errors import UserError

COUNT = 5000
LIKELY = 0.01
"""With the seeds below fixed, a p-value under this says that the distribution is another one."""


def gaps(rate: float, burstiness: float = 1.0, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.diff(arrival_times(rate, burstiness, COUNT, np.random.default_rng(seed)), prepend=0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", [0.5, 20.0])
def test_burstiness_1_is_a_poisson_process(rate: float, seed: int) -> None:
    assert stats.kstest(gaps(rate, seed=seed), stats.expon(scale=1 / rate).cdf).pvalue > LIKELY


@pytest.mark.parametrize("burstiness", [0.2, 0.5, 2.0, 10.0])
def test_gaps_follow_the_gamma_distribution(burstiness: float) -> None:
    seen = gaps(4.0, burstiness)
    assert stats.kstest(seen, stats.gamma(burstiness, scale=1 / (4.0 * burstiness)).cdf).pvalue > LIKELY
    assert np.std(seen) / np.mean(seen) == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)


def test_the_check_itself_tells_distributions_apart() -> None:
    assert stats.kstest(gaps(4.0, 2.0), stats.expon(scale=1 / 4.0).cdf).pvalue < LIKELY
    assert stats.kstest(gaps(4.0), stats.expon(scale=1 / 5.0).cdf).pvalue < LIKELY


def test_gaps_do_not_depend_on_each_other() -> None:
    seen = gaps(4.0)
    assert stats.spearmanr(seen[:-1], seen[1:]).pvalue > LIKELY
    assert stats.spearmanr(seen, np.arange(COUNT)).pvalue > LIKELY


@pytest.mark.parametrize("seed", range(3))
def test_the_last_arrives_at_count_over_rate(seed: int) -> None:
    times = arrival_times(8.0, 0.5, 100, np.random.default_rng(seed))
    assert times[-1] == pytest.approx(100 / 8.0)
    assert np.all(np.diff(times) >= 0)


def test_infinite_rate_is_all_at_once_and_infinite_burstiness_a_metronome() -> None:
    rng = np.random.default_rng(0)
    assert arrival_times(math.inf, 1.0, 3, rng).tolist() == [0, 0, 0]
    assert arrival_times(4.0, math.inf, 4, rng).tolist() == [0.25, 0.5, 0.75, 1.0]
    assert arrival_times(4.0, 1.0, 0, rng).tolist() == []


FORM = RequestForm("m")
CHATS = [LoadPrompt(messages=({"role": "user", "content": str(number)},), label="t") for number in range(2000)]


def timed(*arrivals: float) -> list[LoadPrompt]:
    return [LoadPrompt(tokens=(place,), arrival=arrival) for place, arrival in enumerate(arrivals)]


def test_without_times_all_are_due_at_once_in_their_order() -> None:
    plan = schedule(CHATS[:3], FORM, Arriving())
    assert [request.due for request in plan] == [0.0] * 3
    assert [orjson.loads(request.body)["messages"][0]["content"] for request in plan] == ["0", "1", "2"]
    assert [(one.index, one.label, one.cancel_after) for one in plan] == [(n, "t", None) for n in range(3)]


def test_a_trace_is_played_at_its_own_times_unless_a_rate_takes_their_place() -> None:
    plan = schedule(timed(2.5, 0.5, 1.0), FORM, Arriving())
    assert [request.due for request in plan] == [0.5, 1.0, 2.5]
    assert [orjson.loads(request.body)["prompt"] for request in plan] == [[1], [2], [0]]
    plan = schedule(timed(9.0, 9.0), FORM, Arriving(request_rate=2.0, burstiness=float("inf")))
    assert [request.due for request in plan] == [0.5, 1.0]


def test_cancellations_are_drawn_by_their_rate_and_leave_arrivals_alone() -> None:
    plain = schedule(CHATS, FORM, Arriving(request_rate=10.0), seed=3)
    leaving = schedule(CHATS, FORM, Arriving(request_rate=10.0, cancel_rate=0.3, cancel_delay=2.0), seed=3)
    assert [request.due for request in leaving] == [request.due for request in plain]
    delays = [request.cancel_after for request in leaving]
    assert set(delays) == {None, 2.0}
    assert delays.count(2.0) == pytest.approx(600, abs=60)
    everyone = schedule(CHATS[:50], FORM, Arriving(cancel_rate=1.0, cancel_delay=0.0))
    assert {request.cancel_after for request in everyone} == {0.0}


def test_a_seed_repeats_a_schedule() -> None:
    how = Arriving(request_rate=10.0, cancel_rate=0.5)
    one, again, other = (schedule(CHATS[:50], FORM, how, seed) for seed in (1, 1, 2))
    assert one == again != other


def test_each_prompt_goes_to_its_endpoint_and_to_no_other() -> None:
    chat, tokens = (FORM.fill(prompt, 0) for prompt in (CHATS[0], LoadPrompt(tokens=(1, 2))))
    assert [request.path for request in (chat, tokens)] == [CHAT, COMPLETIONS]
    assert orjson.loads(chat.body)["messages"] == [{"role": "user", "content": "0"}]
    assert orjson.loads(tokens.body)["prompt"] == [1, 2]

    with pytest.raises(UserError, match=COMPLETIONS):
        RequestForm("m", CHAT).fill(LoadPrompt(tokens=(1,)), 0)
    with pytest.raises(UserError, match=CHAT):
        RequestForm("m", COMPLETIONS).fill(CHATS[0], 0)


def test_the_body_asks_for_a_stream_with_usage_and_for_lengths_where_given() -> None:
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    assert orjson.loads(FORM.fill(LoadPrompt(tokens=(1,)), 0).body) == {"model": "m", "prompt": [1], **streaming}
    body = orjson.loads(FORM.fill(LoadPrompt(tokens=(1,), max_tokens=9, replay_tokens=4), 0).body)
    assert (body["max_tokens"], body["replay_tokens"]) == (9, 4)
    assert "replay_tokens" not in orjson.loads(FORM.fill(LoadPrompt(tokens=(1,), max_tokens=9), 0).body)


def test_further_fields_win() -> None:
    form = RequestForm("m", fields={"temperature": 0.5, "max_tokens": 3})
    body = orjson.loads(form.fill(LoadPrompt(tokens=(1,), max_tokens=9), 0).body)
    assert (body["temperature"], body["max_tokens"]) == (0.5, 3)
