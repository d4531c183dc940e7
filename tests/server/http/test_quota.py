"""What one key may ask for, on a clock that the test moves."""

from __future__ import annotations

import pytest

from server.http.quota import Quota, QuotaExceeded


def test_no_minute_sees_more_requests_than_allowed() -> None:
    quota = Quota(requests_per_minute=3)
    for now in (0.0, 10.0, 20.0):
        quota.enter("a", now)
    with pytest.raises(QuotaExceeded) as refused:
        quota.enter("a", 45.0)
    assert refused.value.retry_after == 15.0
    quota.enter("a", 60.0)
    with pytest.raises(QuotaExceeded) as refused:
        quota.enter("a", 61.0)
    assert refused.value.retry_after == 9.0


def test_one_key_does_not_use_up_what_another_has() -> None:
    quota = Quota(requests_per_minute=1)
    quota.enter("a", 0.0)
    quota.enter("b", 0.0)


def test_a_key_has_only_so_many_requests_at_a_time_and_refused_ones_count_for_nothing() -> None:
    quota = Quota(requests_per_minute=3, max_concurrent=2)
    quota.enter("a", 0.0)
    quota.enter("a", 0.0)
    for _ in range(5):
        with pytest.raises(QuotaExceeded, match="at a time"):
            quota.enter("a", 1.0)
    quota.leave("a")
    quota.enter("a", 2.0)
