"""Of a body only what scheduling needs is read, and what is not as it should be is left to the backend."""

from __future__ import annotations

import pytest

from server.api.errors import ApiError
from server.gateway.meta import MOST_WORDS, TABLE, read_deadline, read_meta, read_priority


def test_the_texts_of_messages_parts_and_prompts_are_read_in_order() -> None:
    chat = read_meta(
        b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "fix this"}]}, {"content": "now"}]}'
    )
    plain = read_meta(b'{"prompt": "fix this now"}')
    assert chat.words() == plain.words() and len(plain.words()) == 3
    assert all(0 <= word < TABLE for word in plain.words())
    assert len(read_meta(b'{"input": "%s"}' % (b"a b " * 9000)).words()) == MOST_WORDS


def test_the_longest_answer_is_that_of_any_api() -> None:
    assert read_meta(b'{"max_tokens": 7}').most == 7
    assert read_meta(b'{"max_completion_tokens": 8}').most == 8
    assert read_meta(b'{"max_output_tokens": 9}').most == 9
    assert read_meta(b'{"max_tokens": "many"}').most is None
    assert read_meta(b'{"n": 3}').choices == 3 and read_meta(b'{"n": -3}').choices == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b'{"model": "\xff"}'])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="not a JSON object"):
        read_meta(body)


def test_pictures_do_not_make_a_prompt_endless() -> None:
    assert read_meta(b'{"messages": [{"content": "%s"}]}' % (b"x" * 400_000)).prompt_tokens == 2**15
    assert read_meta(b'{"prompt": "%s"}' % (b"x" * 398)).prompt_tokens == 100


def test_a_deadline_and_a_priority_are_checked() -> None:
    assert read_deadline(read_meta(b'{"deadline_ms": 1500}'), 10.0) == 11.5
    assert read_deadline(read_meta(b"{}"), 10.0) is None
    assert read_priority(read_meta(b'{"priority": -2}')) == -2 and read_priority(read_meta(b"{}")) == 0
    with pytest.raises(ApiError, match="deadline_ms"):
        read_deadline(read_meta(b'{"deadline_ms": "soon"}'), 10.0)
    with pytest.raises(ApiError, match="priority"):
        read_priority(read_meta(b'{"priority": 1.5}'))
