"""How log lines look: for people, for programs, and in systemd's journal."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from server.observe.logs import MOST_LINES, JsonLines, Prioritised, QueuedLines, configure, in_journal, with_fields
from server.observe.metrics import MetricsCollector
from tests.server.live import Live, live_server


@contextmanager
def configured(format: str) -> Iterator[None]:
    """The root logger as the server has it. What it had before, pytest's own handlers too, comes back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    configure("info", format)
    yield
    root.handlers[0].flush()
    root.handlers, root.level = handlers, level


def record(message: str = "it happened", level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("server.test", level, __file__, 1, message, (), None)
    made.created = 1_700_000_000.25
    vars(made).update(extra)
    return made


def test_a_json_line_tells_when_where_what_and_the_fields_of_a_call() -> None:
    made = record(fields=with_fields(status="200", duration_ms=3)["fields"])
    told = {"time": "2023-11-14T22:13:20.250Z", "level": "info", "logger": "server.test", "message": "it happened"}
    assert orjson.loads(JsonLines().format(made)) == told | {"status": "200", "duration_ms": 3}


def test_a_traceback_and_half_a_character_fit_into_one_line() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        made = record("half \ud800", exc_info=sys.exc_info())
    line = JsonLines().format(made)
    assert "\n" not in line
    entry = orjson.loads(line)
    assert entry["message"] == "half ?"
    assert entry["exception"].endswith("ValueError: first\nsecond")


def test_in_the_journal_each_line_has_its_severity() -> None:
    formatter = Prioritised(logging.Formatter("%(message)s"))
    assert formatter.format(record("one\ntwo", logging.ERROR)) == "<3>one\n<3>two"
    marks = [formatter.format(record("", level)) for level in (50, 40, 30, 20, 10)]
    assert marks == ["<2>", "<3>", "<4>", "<6>", "<7>"]


def test_the_journal_is_known_by_its_device_and_inode(tmp_path: os.PathLike[str]) -> None:
    with open(os.path.join(tmp_path, "log"), "w") as file:
        status = os.fstat(file.fileno())
        assert in_journal(file, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        for other in ({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"}, {}):
            assert not in_journal(file, other)


@pytest.mark.parametrize(("format", "is_json"), [("human", False), ("json", True)])
def test_the_format_is_chosen_at_the_start(capfd: pytest.CaptureFixture[str], format: str, is_json: bool) -> None:
    with configured(format):
        logging.getLogger("server.test").info("hello")
        logging.getLogger("server.test").debug("too fine")
    line = capfd.readouterr().err
    assert line.count("\n") == 1 and "hello" in line
    assert line.startswith("{") is is_json


async def test_lines_written_while_a_request_runs_have_its_id(live: Live, capfd: pytest.CaptureFixture[str]) -> None:
    with configured("json"):
        assert (await live.get("/nothing", x_request_id="abc")).status == 404
    entry = orjson.loads(capfd.readouterr().err.splitlines()[-1])
    told = {"request_id": "abc", "method": "GET", "path": "/nothing", "status": "404", "logger": "server.http.service"}
    assert {key: entry[key] for key in told} == told
    assert entry["duration_ms"] >= 0


def test_nothing_waits_for_a_log_that_is_not_read_and_what_it_lost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole server did, SIGTERM too, from 64 KiB of log on."""
    reader, writer = os.pipe()
    handler, total = QueuedLines(writer), MOST_LINES + 5000
    for number in range(total):
        handler.handle(record(f"{number:<100}"))
    monkeypatch.setattr(logging.getLogger("server.observe.logs"), "handlers", [handler])
    read, dropped = 0, 0
    with open(reader) as lines:
        while not dropped:
            line = lines.readline()
            found = re.match(r"(\d+) messages were dropped", line)
            read, dropped = read + (found is None), int(found[1]) if found else 0
    assert read + dropped == total
    assert read >= MOST_LINES and handler.dropped == dropped
    os.close(writer)


async def test_monitoring_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "server.http.service")
    async with live_server(metrics=MetricsCollector("m")) as live:
        for path in ("/metrics", "/health", "/health/live", "/health/ready", "/v1/models"):
            assert (await live.get(path)).status == 200
    levels = [record.levelno for record in caplog.records if record.name == "server.http.service"]
    assert levels == [logging.DEBUG] * 4 + [logging.INFO]
