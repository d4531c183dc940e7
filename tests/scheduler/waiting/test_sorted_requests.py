"""Requests that are sorted at all times, whatever comes and goes, with the sums of what is ahead of each."""

import random

import pytest

from scheduler.request import Request
from scheduler.waiting.sorted_requests import Key, QueueAhead, SortedRequests
from tests.scheduler.fakes import request


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_and_goes_order_and_sums_are_those_of_a_plain_list(seed: int) -> None:
    rng, found, plain = random.Random(seed), SortedRequests(), dict[Key, Request]()
    for number in range(600):
        if plain and rng.random() < 0.45:
            gone = plain.pop(rng.choice(list(plain)))
            assert found.remove(gone) and not found.remove(gone)
        else:
            one = request(number, rng.randint(1, 30), max_tokens=50)
            one.predicted_length = rng.choice((None, rng.randint(1, 40)))
            key: Key = (rng.randint(0, 20), number)
            found.insert(key, one)
            plain[key] = one
        ranked = sorted(plain)
        assert list(found) == [plain[key] for key in ranked] and len(found.keys) == len(plain)
        for key in (*ranked[:: max(1, len(ranked) // 5)], (-1, 0), (99, 0)):
            ahead = [plain[other] for other in ranked if other < key]
            known = [one.predicted_length for one in ahead if one.predicted_length is not None]
            unread = sum(one.input_length for one in ahead)
            assert found.ahead(key) == QueueAhead(len(ahead), sum(known), len(ahead) - len(known), unread)
