"""What a scope had encoded is remembered for it, and changes no token."""

from functools import partial

import pytest
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Encoding, Tokenizer, normalizers

from models.text import Text
from models.text_memory import TextMemory, find_marks
from tests import tiny
from tests.models.test_chat_template import CONTROL, turn

PARTS = st.lists(st.sampled_from([*CONTROL, "hi", " ", "\n", "😀", "user", ".", "a b  c"]), max_size=6).map("".join)


@given(contents=st.lists(PARTS, min_size=1, max_size=6), system=PARTS)
def test_tokens_and_places_are_those_of_the_whole_text(tiny_text: Text, contents: list[str], system: str) -> None:
    turns = [turn("system", system), *(turn(("user", "assistant")[at % 2], one) for at, one in enumerate(contents))]
    for _ in range(2):
        assert tiny_text.encode_turns(turns, scope="a key") == tiny_text.encode_turns(turns)


def memory_of(text: Text, most: int = 10**6) -> tuple[TextMemory, list[str]]:
    """And what it had encoded."""
    backend, encoded = Tokenizer.from_str(text.to_json()), list[str]()

    def encode(texts: list[str]) -> list[Encoding]:
        encoded.extend(texts)
        return list(map(partial(backend.encode, add_special_tokens=False), texts))

    marks = find_marks(backend)
    assert marks is not None
    return TextMemory(marks, encode, most), encoded


def test_a_longer_chat_has_only_its_new_turns_encoded(tiny_text: Text) -> None:
    memory, encoded = memory_of(tiny_text)
    chat = f"{tiny.START}user\nhi{tiny.END}\n"
    memory.encode([f"before {chat}"], "a")
    del encoded[:]
    memory.encode([f"before {chat}{tiny.START}assistant\nyes"], "a")
    assert encoded == [f"{tiny.START}assistant\nyes"]


def test_a_scope_finds_nothing_of_another(tiny_text: Text) -> None:
    memory, encoded = memory_of(tiny_text)
    for scope in ("a", "b", "a", "b"):
        memory.encode(["secret"], scope)
    assert encoded == ["secret", "secret"]


def test_what_was_used_last_is_remembered_within_the_bound(tiny_text: Text) -> None:
    memory, encoded = memory_of(tiny_text, most=300)
    for place in range(100):
        memory.encode(["first"], "a")
        memory.encode([f"text {place}"], "a")
        assert memory._bytes == sum(one.bytes for one in memory._known.values()) <= 300
    assert encoded.count("first") == 1 and len(encoded) == 101


@pytest.mark.parametrize("change", ["normalizer", "strips"])
def test_nothing_is_cut_where_what_stands_around_a_token_matters(tiny_text: Text, change: str) -> None:
    backend = Tokenizer.from_str(tiny_text.to_json())
    if change == "normalizer":
        backend.normalizer = normalizers.Prepend("▁")
    else:
        backend.add_special_tokens([AddedToken("<x>", lstrip=True)])
    assert find_marks(backend) is None
