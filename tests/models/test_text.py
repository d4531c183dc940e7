"""Text to token ids and back: no half characters, no lost ones, and no turn that a user can forge."""

import codecs
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from models.errors import TextError
from models.text import Text
from models.text_stream import LONGEST_WAIT, ByteStream, StopMatcher, TextStream, foresee_together
from tests import tiny
from tests.calls import note_calls

VOCAB = 320
CONTROL = (tiny.PAD, tiny.START, tiny.END)
FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
SAMPLES = (
    *("naïve café", "😀😀", f"a {FAMILY} b", "你好，世界。", "مرحبا بالعالم"),
    *("e\u0301\u0302", "tab\tline\n", "\ufffd, meant"),
)

# Hypothesis tries the strings of loaded modules as well, and special tokens have no text.
characters = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(lambda text: "<|" not in text)
writing = characters | st.sampled_from(SAMPLES)


def pieces(text: Text, ids: Iterable[int], stream: TextStream | None = None) -> list[str]:
    """Pieces of text that a reader of the stream sees, the flush at its end last."""
    reader = text.stream() if stream is None else stream
    return [*(reader.push(token_id) for token_id in ids), reader.flush()]


def byte(text: Text, value: int) -> int:
    """The token of one single byte."""
    return next(index for index in range(VOCAB) if text.token_bytes(index) == bytes([value]))


def of_vocabulary(tokens: list[str], decoder: Any) -> Text:
    backend = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, []))
    backend.decoder = decoder
    return of_backend(backend)


def of_backend(backend: Tokenizer, template: str | None = None) -> Text:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    return Text(tokenizer, chat_template=template)


# Decoding


def test_a_character_comes_out_with_its_last_byte(tiny_text: Text) -> None:
    ids = [byte(tiny_text, value) for value in "é😀".encode()]
    assert pieces(tiny_text, ids) == ["", "é", "", "", "", "😀", ""]


CUT_OFF = [
    (b"a\xf0\x9f", "a"),
    (b"\xe4\xb8\x96\xe4\xb8", "世"),
    (b"a\xf0\x9f\x98\xf0\x9f", "a\ufffd"),  # the first is cut off by the second, not by the end
    (b"a\x80", "a\ufffd"),  # never the beginning of a character
    (b"\x80\xc3", "\ufffd"),
    (b"a\xef\xbf\xbd", "a\ufffd"),  # the character itself
    (b"\xef\xbf\xbdb", "\ufffdb"),
    (b"\xf0", ""),
]


@pytest.mark.parametrize(("data", "said"), CUT_OFF)
def test_a_character_that_the_end_cuts_off_is_left_out(tiny_text: Text, data: bytes, said: str) -> None:
    ids = [byte(tiny_text, value) for value in data]
    assert "".join(pieces(tiny_text, ids)) == said


@pytest.mark.parametrize(("data", "said"), [(b"a\xf0\x9f", "a"), ("世".encode() + b"\xe4\xb8", "世"), (b"\xf0", "")])
def test_so_it_is_where_only_rare_characters_are_bytes(data: bytes, said: str) -> None:
    decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    text = of_vocabulary([f"<0x{value:02X}>" for value in range(256)], decoder)
    assert text.token_bytes(0xF0) == b"\xf0"
    assert "".join(pieces(text, data)) == said


def test_a_token_that_ends_a_character_and_begins_another_is_shown_up_to_there() -> None:
    """Vocabularies of bytes have tokens such as a blank with the first byte of an emoji."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "\u0120\u00f0"]
    text = of_vocabulary(letters, decoders.ByteLevel())
    both, *others = (len(letters) - 1, *(byte(text, value) for value in "😀".encode()[1:]))
    assert text.token_bytes(both) == b" \xf0"
    cut_off = [[both, *others[:count]] for count in range(3)]
    assert ["".join(pieces(text, ids)) for ids in cut_off] == [" ", " ", " "]
    assert [pieces(text, ids, TextStream(text))[-1] for ids in cut_off] == [" ", " ", " "]
    assert "".join(pieces(text, [both, *others])) == " 😀"


@given(sample=writing)
def test_every_piece_of_a_text_is_whole_and_the_pieces_make_the_text(tiny_text: Text, sample: str) -> None:
    *shown, rest = pieces(tiny_text, tiny_text.encode(sample))
    assert "".join((*shown, rest)) == sample
    assert all("\ufffd" not in piece for piece in shown) or "\ufffd" in sample


@given(ids=st.lists(st.integers(0, VOCAB - 1), max_size=LONGEST_WAIT - 1))
def test_pieces_of_random_tokens_join_to_the_whole_but_for_what_its_end_cuts(tiny_text: Text, ids: list[int]) -> None:
    said = b"".join(tiny_text.token_bytes(one) for one in ids if one > tiny.END_ID)
    assert "".join(pieces(tiny_text, ids)) == codecs.getincrementaldecoder("utf-8")("replace").decode(said)


@given(ids=st.lists(st.integers(0, VOCAB - 1), max_size=LONGEST_WAIT - 1))
def test_a_table_of_bytes_gives_the_text_that_the_tokenizer_gives(tiny_text: Text, ids: list[int]) -> None:
    assert isinstance(tiny_text.stream(), ByteStream)
    assert "".join(pieces(tiny_text, ids)) == "".join(pieces(tiny_text, ids, TextStream(tiny_text)))


@pytest.mark.parametrize(("content", "special"), [("<think>", False), ("a b", False), ("<|x|>", True)])
def test_added_tokens_are_said_as_the_tokenizer_says_them(content: str, special: bool) -> None:
    text = of_vocabulary([*sorted(pre_tokenizers.ByteLevel.alphabet())], decoders.ByteLevel())
    text._backend.add_tokens([AddedToken(content, special=special)])
    first, second = (byte(text, value) for value in "é".encode())
    for ids in ([256], [first, 256, second], [256, first, second, 256]):
        assert "".join(pieces(text, ids)) == text.decode(ids)


def test_the_table_is_made_before_the_first_answer(tiny_folder: Path) -> None:
    """Of a large vocabulary it takes a good part of a second."""
    text = Text.load(tiny_folder)
    text.warm_up()
    assert "_byte_table" in vars(text)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """How many tokens each line had that was decoded, call by call."""
    return note_calls(monkeypatch, Text, "decode_batch", lambda _, lines: [*map(len, lines)])


def test_all_streams_of_a_step_are_decoded_in_one_call(tiny_text: Text, decoded: list[list[int]]) -> None:
    ids = tiny_text.encode("one é, two")
    streams, texts = [TextStream(tiny_text) for _ in range(3)], [""] * 3
    for token in ids:
        foresee_together(tiny_text, [(stream, token) for stream in streams])
        texts = [text + stream.push(token) for text, stream in zip(texts, streams, strict=True)]
    assert [len(lines) for lines in decoded] == [6] * len(ids) and texts == ["one é, two"] * 3


def test_an_endless_run_of_stray_bytes_is_shown_after_a_bounded_wait(tiny_text: Text) -> None:
    stray = [byte(tiny_text, 0x80)] * (2 * LONGEST_WAIT)
    shown = pieces(tiny_text, stray, TextStream(tiny_text))
    assert shown[LONGEST_WAIT - 1] == "\ufffd" * LONGEST_WAIT
    assert "".join(shown) == "\ufffd" * len(stray)


def test_an_endless_run_of_control_tokens_is_decoded_once(tiny_text: Text, decoded: list[list[int]]) -> None:
    """Tokens without text used to stay pending for ever, so that each decoded all before it once more."""
    stream = TextStream(tiny_text)
    assert {stream.push(2) for _ in range(10 * LONGEST_WAIT)} == {""}
    assert stream.push(tiny_text.encode("a")[0]) == "a"
    assert max(map(max, decoded)) <= 2 * LONGEST_WAIT


# What tokenizers do not know


def test_text_that_the_vocabulary_has_no_token_for_is_refused() -> None:
    text = of_backend(Tokenizer(models.WordLevel({"a": 0})))
    assert text.encode("a") == [0]
    with pytest.raises(TextError, match="cannot encode this text"):
        text.encode("\0")


def test_a_panic_of_the_tokenizer_is_an_error_of_the_text() -> None:
    """Rust's panics are no `Exception`: the client's connection was closed without a word."""
    backend = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    text = of_backend(backend)
    for length in (60, 6000):
        with pytest.raises(TextError, match="cannot encode this text: PanicException: .*retry-limit"):
            text.encode("a" * length + "b")
    assert text.encode("aab") == [0, 0, 1]


def test_a_lone_surrogate_is_refused(tiny_text: Text) -> None:
    for encode in (tiny_text.encode, lambda text: tiny_text.encode_chat([{"role": "user", "content": text}])):
        with pytest.raises(TextError, match="cannot encode this text"):
            encode("\ud800")


BROKEN = [
    ("tokenizer.json", ""),
    ("tokenizer.json", '{"model": 3}'),
    ("tokenizer.json", '{"added_tokens": 5}'),
    ("tokenizer_config.json", "[]"),
    ("tokenizer_config.json", '{"tokenizer_class": 5}'),
    ("tokenizer_config.json", '{"eos_token": 3}'),
    ("tokenizer_config.json", '{"a": ' * 100_000),
]


@pytest.mark.parametrize(("name", "content"), BROKEN)
def test_a_broken_tokenizer_is_refused_with_a_remedy(tmp_path: Path, name: str, content: str) -> None:
    """Some of these ended in a traceback."""
    folder = tiny.build(tmp_path / "tiny")
    (folder / name).write_text(content)
    with pytest.raises(TextError, match="in tiny.*: .*copy the tokenizer files of the original model"):
        Text.load(folder)


# Single tokens


@given(sample=writing)
def test_the_bytes_of_tokens_join_to_the_text(tiny_text: Text, sample: str) -> None:
    assume(not any(control in sample for control in CONTROL))
    ids = tiny_text.encode(sample)
    assert b"".join(tiny_text.token_bytes(token_id) for token_id in ids) == sample.encode()


def test_a_vocabulary_of_characters_is_not_read_as_one_of_bytes() -> None:
    """The character é also stands for the byte 0xE9 in byte-level vocabularies; here it stands for itself."""
    backend = Tokenizer(models.BPE({"é": 0, "\u2581": 1, "?": 2}, [], unk_token="?"))
    backend.decoder = decoders.Metaspace()
    text = of_backend(backend)
    assert text.token_bytes(0) == "é".encode()


def test_the_text_of_a_token_shows_control_tokens_and_replaces_halves(tiny_text: Text) -> None:
    assert tiny_text.token_text(1) == tiny.START
    assert tiny_text.token_text(byte(tiny_text, 0xF0)) == "\ufffd"


@given(sample=writing)
def test_no_text_has_more_bytes_than_its_tokens_times_the_longest(tiny_text: Text, sample: str) -> None:
    """Characters were counted, so a text of four bytes each was encoded for seconds before it was refused."""
    longest = tiny_text.longest_token or 0
    assert (longest, tiny_text.vocab_size) == (len(tiny.PAD), VOCAB)
    assert len(sample.encode()) <= len(tiny_text.encode(sample)) * longest


def stripping(backend: Tokenizer) -> None:
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])


def normalizing(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.NFC()


def dropping(backend: Tokenizer) -> None:
    split = pre_tokenizers.Split(" ", "removed")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel()])


def mixing(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Whitespace()


@pytest.mark.parametrize("change", [stripping, normalizing, dropping, mixing])
def test_no_token_is_the_longest_where_one_may_say_more(tiny_text: Text, change: Callable[[Tokenizer], None]) -> None:
    """A text was refused as too long though its blanks, say, are part of one token."""
    backend = Tokenizer.from_str(tiny_text.to_json())
    change(backend)
    assert of_backend(backend).longest_token is None


def test_texts_are_encoded_as_they_are_alone_whatever_the_file_says_of_batches(tiny_text: Text) -> None:
    """A tokenizer's file may ask for padding, and for prompts cut short."""
    backend = Tokenizer.from_str(tiny_text.to_json())
    backend.enable_padding()
    backend.enable_truncation(3)
    turns = [{"role": "user", "content": f"{tiny.END}ab{tiny.START}"}]
    changed = of_backend(backend, tiny.CHAT_TEMPLATE)
    assert changed.encode("the fox") == tiny_text.encode("the fox")
    assert changed.encode_chat(turns) == tiny_text.encode_chat(turns)


@given(sample=writing, times=st.sampled_from([1, 300]))
def test_a_batch_of_one_encodes_and_decodes_as_the_text_alone(tiny_text: Text, sample: str, times: int) -> None:
    alone, sample = Tokenizer.from_str(tiny_text.to_json()), sample * times
    ids = alone.encode(sample).ids
    assert tiny_text.encode(sample) == ids
    assert tiny_text.decode(ids) == alone.decode(ids)


# Stop strings


def matched(matcher: StopMatcher, *texts: str) -> tuple[str, str | None]:
    """All text that is shown, up to the stop string that ends it or through the flush."""
    shown = ""
    for text in texts:
        more, stop = matcher.push(text)
        shown += more
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


STOPS = [
    (["END"], ["abENDcd"], ("ab", "END")),
    (["END"], ["abE", "N", "Dcd"], ("ab", "END")),
    (["END"], ["abE", "N", "cd"], ("abENcd", None)),
    (["cd", "b"], ["abcd"], ("a", "b")),  # the earliest in the text, not the first in the list
    (["abc", "ab"], ["xabc"], ("x", "ab")),
    (["aab"], ["aa", "a", "b"], ("a", "aab")),  # what is held may begin one character later
    ([f"<{place}>" for place in range(256)], ["a<2", "56><25", "5>"], ("a<256>", "<255>")),
    (["ab", "abcd", "cx"], ["xabc"], ("x", "ab")),
    (["abcd", "cx"], ["xabc", "x"], ("xab", "cx")),  # what begins earlier came to nothing
    (["\n\n"], ["one\n", "two\n", "\n"], ("one\ntwo", "\n\n")),
    (["😀"], ["a😀"], ("a", "😀")),
    (["\0"], ["a\0b"], ("a", "\0")),
    ([], ["abc"], ("abc", None)),
]


@pytest.mark.parametrize(("stops", "texts", "expected"), STOPS)
def test_stop_strings_end_the_text(stops: list[str], texts: list[str], expected: tuple[str, str | None]) -> None:
    assert matched(StopMatcher(stops, include=False), *texts) == expected


def test_text_is_held_back_only_while_it_may_become_a_stop_string() -> None:
    matcher = StopMatcher(["<end>"], include=False)
    told = [matcher.push(piece) for piece in ("a<", "en", "x", "<e")]
    assert told == [("a", None), ("", None), ("<enx", None), ("", None)]
    assert (matcher.flush(), matcher.flush()) == ("<e", "")


@given(
    texts=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
)
def test_pieces_do_not_change_where_a_text_stops(texts: list[str], stops: list[str], include: bool) -> None:
    """Character by character, the text ends at the first moment at which it ends with a stop string."""
    whole = "".join(texts)
    ends = (end for end in range(len(whole) + 1) if any(whole[:end].endswith(stop) for stop in stops))
    end = next(ends, None)
    shown, stop = matched(StopMatcher(stops, include=include), *whole)
    assert (stop is None) == (end is None)
    if end is None or stop is None:
        assert shown == whole
    else:
        assert shown == whole[: end if include else end - len(stop)]
