"""The quota of a key, on a clock that the test moves."""

from __future__ import annotations

import pytest

from server.api.errors import ApiError
from server.cli.config import Admission
from server.http.access import Quota


def test_no_minute_sees_more_requests_than_allowed() -> None:
    quota = Quota(Admission(requests_per_minute=3))
    for now in (0.0, 10.0, 20.0):
        quota.enter("a", now)
    with pytest.raises(ApiError) as refused:
        quota.enter("a", 45.0)
    assert refused.value.headers["Retry-After"] == "15"
    quota.enter("a", 60.0)
    with pytest.raises(ApiError) as refused:
        quota.enter("a", 61.0)
    assert refused.value.headers["Retry-After"] == "9"


def test_one_key_does_not_use_up_what_another_has() -> None:
    quota = Quota(Admission(requests_per_minute=1))
    quota.enter("a", 0.0)
    quota.enter("b", 0.0)


def test_a_key_has_only_so_many_requests_at_a_time_and_refused_ones_count_for_nothing() -> None:
    quota = Quota(Admission(requests_per_minute=3, max_concurrent_requests=2))
    share = quota.enter("a", 0.0)
    quota.enter("a", 0.0)
    for _ in range(5):
        with pytest.raises(ApiError, match="at a time"):
            quota.enter("a", 1.0)
    quota.leave(share)
    quota.enter("a", 2.0)


def test_answers_count_and_not_the_requests_that_ask_for_them() -> None:
    """One request with n = 64 took all slots of a server whose keys may have one at a time."""
    quota = Quota(Admission(max_concurrent_requests=4))
    share, other = quota.enter("a", 0.0), quota.enter("a", 0.0)
    quota.count_answers(share, 3)
    with pytest.raises(ApiError, match="3 answers of this key are under way, and 4 may be"):
        quota.count_answers(other, 2)
    quota.leave(other)
    with pytest.raises(ApiError, match="5 answers are more than the 4"):
        quota.count_answers(share, 5)
    quota.leave(share)
    quota.count_answers(quota.enter("a", 0.0), 4)


def test_no_request_begins_in_a_minute_that_has_seen_its_tokens() -> None:
    quota = Quota(Admission(tokens_per_minute=100))
    quota.enter("a", 0.0)
    quota.spend("a", 60, 0.0)
    quota.enter("a", 10.0)
    quota.spend("a", 70, 10.0)
    with pytest.raises(ApiError, match="130 tokens in a minute, and may use 100") as refused:
        quota.enter("a", 20.0)
    assert refused.value.headers["Retry-After"] == "40"
    quota.enter("b", 20.0)
    quota.enter("a", 60.0)


def test_a_request_in_the_background_leaves_half_of_everything_to_others() -> None:
    """Lines of a batch counted for nothing."""
    quota = Quota(Admission(requests_per_minute=6, max_concurrent_requests=4, tokens_per_minute=100))
    shares = [quota.enter("a", 0.0, quota.background) for _ in range(2)]
    with pytest.raises(ApiError, match="2 answers of this key are under way, and 2 may be"):
        quota.enter("a", 0.0, quota.background)
    shares.append(quota.enter("a", 0.0))
    for share in shares:
        quota.leave(share)
    with pytest.raises(ApiError, match="3 requests in a minute"):
        quota.enter("a", 1.0, quota.background)
    quota.spend("a", 50, 2.0)
    quota.leave(quota.enter("a", 3.0))
    with pytest.raises(ApiError, match="50 tokens in a minute, and may use 50"):
        quota.enter("a", 61.0, quota.background)


def test_background_requests_for_many_answers_do_not_wait_for_each_other_for_ever() -> None:
    quota = Quota(Admission(max_concurrent_requests=4))
    first, second = (quota.enter("a", 0.0, quota.background) for _ in range(2))
    with pytest.raises(ApiError):
        quota.count_answers(first, 4)
    quota.count_answers(second, 4)
    with pytest.raises(ApiError):
        quota.count_answers(first, 1)
    quota.leave(second)
    quota.count_answers(first, 4)
