"""Bodies that are made to take long to read."""

from __future__ import annotations

import time

import pytest

from server.api.errors import ApiError
from server.api.input.body import parse
from server.api.input.schema import CompletionBody


def test_a_string_that_does_not_end_is_passed_over_once() -> None:
    begin = time.process_time()
    with pytest.raises(ApiError):
        parse(b'{"prompt": "a", "n": 1.5, "user": "' + b'\\"' * 30_000, CompletionBody)
    assert time.process_time() - begin < 2  # and not half a minute
