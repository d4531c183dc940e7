"""Traces become arrivals and lengths, and what is wrong with a file is told with its line."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from loadgen.workload.lengths import Cut, RequestLengths, load_trace
from models.errors import UserError
from tests.loadgen.workload.args import write

DATA = Path(__file__).parents[4] / "shared" / "data"

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:46.6805900,2000,1000
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118.5,GPT-4,417,276,693,API log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}

{"timestamp": 1500, "input_length": 6472, "output_length": 26, "hash_ids": [46]}
"""
BAILIAN = """{"chat_id": 7, "parent_chat_id": -1, "timestamp": 60.5, "input_length": 1089, "output_length": 15, "type": "text", "turn": 1, "hash_ids": [1, 2]}
{"chat_id": 9, "parent_chat_id": 7, "timestamp": 62.0, "input_length": 1200, "output_length": 30, "type": "text", "turn": 2, "hash_ids": [1, 2, 3]}
"""  # noqa: E501
SERVEGEN = """request_id,timestamp,input_tokens,output_tokens
0,0.5,310,41
1,1.25,15,25
"""
FORMATS = {"azure": AZURE, "burstgpt": BURSTGPT, "mooncake": MOONCAKE, "qwen-bailian": BAILIAN, "servegen": SERVEGEN}


def read(folder: Path, kind: str, text: str | bytes, cut: Cut | None = None) -> list[RequestLengths]:
    return load_trace(write(folder, "trace", text), kind, cut or Cut())


def test_burstgpt_leaves_failed_requests_out_and_counts_from_the_first(tmp_path: Path) -> None:
    assert read(tmp_path, "burstgpt", BURSTGPT) == [RequestLengths(0.0, 472, 18), RequestLengths(113.5, 417, 276)]


def test_the_published_traces_are_in_their_own_units(tmp_path: Path) -> None:
    """Qwen-Bailian's seconds were read as Mooncake's milliseconds: the columns have the same names."""
    lasts = {kind: read(tmp_path, kind, text)[-1].arrival for kind, text in FORMATS.items()}
    expected = {"azure": 60.0, "burstgpt": 113.5, "mooncake": 1.5, "qwen-bailian": 1.5, "servegen": 0.75}
    assert lasts == {kind: pytest.approx(last) for kind, last in expected.items()}


def test_turns_of_qwen_bailian_name_the_turn_before_them(tmp_path: Path) -> None:
    assert [(one.chat, one.parent) for one in read(tmp_path, "qwen-bailian", BAILIAN)] == [("7", ""), ("9", "7")]


LEFT_OUT = [
    ("burstgpt", "200,m,0,0,0,log", "2 of 4"),
    ("burstgpt", "200,m,0.0,5,5,log", "2 of 4"),
    ("burstgpt", '200,m,"15",0,15,log', "2 of 4"),
    ("azure", "2023-11-16 19:15:46,0,7", "1 of 4"),
    ("servegen", "2,9,5,0", "1 of 3"),
    ("mooncake", '{"timestamp": 9, "input_length": 0, "output_length": 0}', "1 of 3"),
    ("qwen-bailian", '{"chat_id": 3, "timestamp": 90, "input_length": 1, "output_length": "0"}', "1 of 3"),
]


@pytest.mark.parametrize(("kind", "row", "left_out"), LEFT_OUT)
def test_failed_rows(tmp_path: Path, kind: str, row: str, left_out: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One with no tokens of a prompt ended the command."""
    assert read(tmp_path, kind, FORMATS[kind] + row) == read(tmp_path, kind, FORMATS[kind])
    assert f": {left_out} rows are left out: requests that failed, with 0 tokens\n" in capsys.readouterr().err


@pytest.mark.parametrize("written", ["15", "15.0", '"15"', '"15.0"', "1.5e1"])
def test_a_whole_number_may_be_written_in_any_way_and_hashes_may_lack(tmp_path: Path, written: str) -> None:
    rows = f'{{"timestamp": "0", "input_length": {written}, "output_length": {written}}}'
    assert read(tmp_path, "mooncake", rows) == [RequestLengths(0.0, 15, 15)]
    rows = f"{SERVEGEN.splitlines()[0]}\n0,0,{written},{written}"
    assert read(tmp_path, "servegen", rows) == [RequestLengths(0.0, 15, 15)]


@pytest.mark.parametrize("kind", FORMATS)
def test_line_ends_of_windows_a_byte_order_mark_and_no_last_line_end_change_nothing(tmp_path: Path, kind: str) -> None:
    odd = b"\xef\xbb\xbf" + FORMATS[kind].rstrip("\n").replace("\n", "\r\n").encode()
    assert read(tmp_path, kind, odd) == read(tmp_path, kind, FORMATS[kind])


ROWS = {
    "azure": AZURE.splitlines()[0] + "\n{0},1,2\n{1},1,2\n",
    "burstgpt": BURSTGPT.splitlines()[0] + "\n{0},m,1,2,3,log\n{1},m,1,2,3,log\n",
    "servegen": SERVEGEN.splitlines()[0] + "\n0,{0},1,2\n1,{1},1,2\n",
} | {
    kind: "".join(
        f'{{{{"timestamp": "{{{place}}}", "input_length": 1, "output_length": 2{more}}}}}\n' for place in range(2)
    )
    for kind, more in (("mooncake", ""), ("qwen-bailian", ', "chat_id": 1'))
}


TIMES = [
    (("1700158546.25", "1700158607.75"), dict.fromkeys(FORMATS, 61.5) | {"mooncake": 0.0615}),
    (("2023-11-16T18:15:46.25Z", "2023-11-16T19:16:47.75+01:00"), dict.fromkeys(FORMATS, 61.5)),
    (("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:01:01.509930+00:00"), dict.fromkeys(FORMATS, 61.5)),
]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("times", "apart"), TIMES, ids=["numbers", "dates", "Azure's of 2024"])
def test_times_are_numbers_or_dates(tmp_path: Path, kind: str, times: tuple[str, str], apart: dict[str, float]) -> None:
    assert [one.arrival for one in read(tmp_path, kind, ROWS[kind].format(*times))] == [0, pytest.approx(apart[kind])]


def test_requests_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    lines = [f'{{"timestamp": {time}, "input_length": {time + 1}, "output_length": 1}}' for time in (3000, 1000, 2000)]
    found = read(tmp_path, "mooncake", "\n".join(lines))
    assert [(one.arrival, one.input_length) for one in found] == [(0.0, 1001), (1.0, 2001), (2.0, 3001)]


def test_a_window_without_requests_is_refused_with_the_length_of_the_trace(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trace: no request .*--trace-start.*lasts 60 s"):
        read(tmp_path, "azure", AZURE, Cut(start=500))


# Wrong files


def mooncake(**odd: object) -> str:
    """A trace with a row at its end that has something odd in it."""
    return f"{MOONCAKE}{json.dumps({'timestamp': 5, 'input_length': 1, 'output_length': 1} | odd)}\n"


WRONG: dict[str, tuple[str, str | bytes, int, str]] = {
    "a date that is none": ("azure", AZURE + "yesterday,1,2\n", 5, "'yesterday'"),
    "a number cut off": ("azure", AZURE + "2023-11-16 18:15:47.1,37", 5, "has 2 fields, the header has 3"),
    "a length that is a word": ("azure", AZURE + "2023-11-16 18:15:47.1,many,1\n", 5, "ContextTokens: 'many'"),
    "a length that is missing": ("azure", AZURE + "2023-11-16 18:15:47.1,1,\n", 5, "GeneratedTokens: ''"),
    "Qwen-Bailian's for Mooncake's": ("mooncake", BAILIAN, 1, "its times are seconds, so name it qwen-bailian"),
    "both in one file": ("mooncake", MOONCAKE + BAILIAN, 4, "its times are seconds, so name it qwen-bailian"),
    "Mooncake's for Qwen-Bailian's": ("qwen-bailian", MOONCAKE, 1, "lacks chat_id"),
    "a length below zero": ("azure", AZURE + "2023-11-16 18:15:47.1,1,-1\n", 5, "GeneratedTokens: '-1'"),
    "a damaged number": ("azure", AZURE + "2023-11-16 18:15:47.1,1,99999999999\n", 5, "<= 10000000"),
    "another format": ("azure", BURSTGPT, 1, "lacks TIMESTAMP, ContextTokens, GeneratedTokens"),
    "a column too few": ("burstgpt", "Timestamp,Model,Request tokens\n1,m,2\n", 1, "lacks Response tokens"),
    "no header": ("burstgpt", "1,m,2,3,5,log\n", 1, "the header must name"),
    "nothing at all": ("azure", "", 1, "the header must name"),
    "a fraction of a token": ("burstgpt", BURSTGPT + "200,m,1.5,1,2,log\n", 5, "Request tokens: '1.5'"),
    "a time that is none": ("burstgpt", BURSTGPT + "nan,m,1,1,2,log\n", 5, "Timestamp: 'nan'"),
    "an endless quote": ("burstgpt", BURSTGPT + '200,"m,1,1,2,log\n', 5, "not valid CSV"),
    "JSON cut off": ("mooncake", MOONCAKE + '{"timestamp": 5, "inp', 4, "data was truncated"),
    "JSON without a length": ("mooncake", MOONCAKE + '{"timestamp": 5}\n', 4, "lacks input_length, output_length"),
    "JSON with text for a length": ("mooncake", mooncake(input_length="x"), 4, "input_length: 'x'"),
    "JSON with true for a time": ("mooncake", mooncake(timestamp=True), 4, "timestamp: True"),
    "JSON with null for a length": ("mooncake", mooncake(output_length=None), 4, "output_length: None"),
    "JSON with a number beyond all bounds": ("mooncake", mooncake(input_length=10**400 - 1), 4, "input_length: 999"),
    "a list": ("mooncake", MOONCAKE + "[1]\n", 4, "got `array`"),
    "a file of another kind": ("mooncake", b"PAR1\xff\xfe", 1, "not UTF-8"),
    "a compressed file": ("azure", gzip.compress(AZURE.encode()), 1, "unpack it with gunzip"),
    "bytes in the middle": ("azure", AZURE.encode() + b"2023\xff,1,1\n", 5, "not UTF-8"),
}


# Rows that are left out where others can be read.
WHOLE = {"qwen-bailian", "CSV", "UTF-8"}
ODD = {name: case for name, case in WRONG.items() if case[2] in (4, 5) and not WHOLE & {*case[3].split()}}


@pytest.mark.parametrize(("kind", "text", "line", "reason"), ODD.values(), ids=ODD)
def test_an_odd_row_is_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, text: str, line: int, reason: str
) -> None:
    good = text[: text.rstrip("\n").rindex("\n") + 1]
    assert read(tmp_path, kind, text) == read(tmp_path, kind, good)
    said = " ".join(capsys.readouterr().err.split())
    assert ": 1 of " in said and reason in said
    with pytest.raises(UserError, match=f"line {line}: "):
        read(tmp_path, kind, good + 9 * (text[len(good) :].rstrip("\n") + "\n"))


@pytest.mark.parametrize("name", [name for name in WRONG if name not in ODD])
def test_a_wrong_file_is_told_its_place(tmp_path: Path, name: str) -> None:
    kind, text, line, reason = WRONG[name]
    with pytest.raises(UserError) as caught:
        read(tmp_path, kind, text)
    assert str(caught.value).startswith(f"{tmp_path / 'trace'}, line {line}: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_shows_its_format(tmp_path: Path, kind: str) -> None:
    text = FORMATS[kind]
    for shown in (text, f"\ufeff\n\n{text}", text.replace("ContextTokens", '"ContextTokens"')):
        assert load_trace(write(tmp_path, "trace", shown)) == read(tmp_path, kind, text)


@pytest.mark.parametrize("text", ["", "when,in,out\n1,2,3\n", "[]", AZURE.replace(",", ";")])
def test_a_file_of_no_known_format_is_told_what_it_should_have(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"trace, line 1: is no trace .* GeneratedTokens or Timestamp, .* JSON object"):
        load_trace(write(tmp_path, "trace", text))


def test_what_is_wrong_outside_of_the_window_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 5"):
        read(tmp_path, "azure", AZURE + 9 * "2023-11-16 19:00:00,1\n", Cut(limit=1))


def test_a_trace_of_failed_requests_alone_holds_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no requests"):
        read(tmp_path, "burstgpt", "\n".join([*BURSTGPT.splitlines()[:1], BURSTGPT.splitlines()[2]]))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.csv: cannot be read: No such file"):
        load_trace(tmp_path / "absent.csv", "azure")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        load_trace(tmp_path, "azure")


@pytest.mark.skipif(not DATA.exists(), reason="needs the published traces in ../shared/data")
def test_an_hour_of_a_production_service_is_read_whole() -> None:
    file = DATA / "traces" / "azure_conv_2023.csv"
    found = load_trace(file, "azure")
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    assert [one.input_length for one in found] == [int(row["ContextTokens"]) for row in rows]
    assert [one.output_length for one in found] == [int(row["GeneratedTokens"]) for row in rows]
    assert found[0].arrival == 0
    assert found[-1].arrival == pytest.approx(3501.72194, abs=1e-4)
