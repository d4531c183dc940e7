"""Files over loopback: forms, names, bounds, and disks that are full."""

import asyncio
import os
from io import BytesIO
from pathlib import Path

import pytest

from server.config import FrontConfig
from server.http.front import Front
from server.observe.logs import quiet_broken_requests
from tests.server.api.batches import served
from tests.server.api.batches.served import line, server, upload
from tests.server.live import Live


@pytest.mark.parametrize("size", [3, 200_000])
async def test_a_full_disk_is_told(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """It was answered 500, with a traceback in the log."""
    opened = os.open

    def open_full(path: Path, *given: int) -> int:
        handle = opened(path, *given)
        if path.suffix != ".data":
            return handle
        os.close(handle)
        return opened("/dev/full", os.O_WRONLY)  # a device that takes no byte

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_full)
        error = await live.refused("/v1/files", served.form(b"x" * size), 507, code="disk_full")
    assert error["type"] == "InsufficientStorageError"
    assert not [*(tmp_path / "files").iterdir()]
    await upload(live, line("a"))


def is_open(name: str) -> bool:
    """Whether this process holds a file open."""
    links = (Path("/proc/self/fd", one) for one in os.listdir("/proc/self/fd"))
    return any(name in os.readlink(link) for link in links if link.is_symlink())


def form(*fields: bytes) -> bytes:
    return b"".join(b"--x\r\nContent-Disposition: form-data; " + field + b"\r\n" for field in fields) + b"--x--\r\n"


PURPOSE, FILE = b'name="purpose"\r\n\r\nbatch', b'name="file"; filename="a"\r\n\r\nabc'


NESTED = b"--x\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n"


FORMS = {
    "a character set of its own": (form(b'name="_charset_"\r\n\r\n' + b"u" * 100), "form cannot be read"),
    "a boundary longer than what is looked for": (form(b'name="_charset_"\r\n\r\nutf-8'), "form cannot be read"),
    "forms in forms": (NESTED * 3000, "form cannot be read"),
    "more fields than bytes of a file": (form(*[b'name="x"\r\n\r\n1'] * 20_000), "has more than 16 fields"),
    "fields that end nowhere": (form(PURPOSE)[:-10], "form cannot be read"),
    "two files": (form(PURPOSE, FILE, FILE), "one at a time"),
    "half a header": (b"--x\r\nA: " + b"b" * 100_000, "body cannot be read"),
    "as many headers": (b"--x\r\n" + b"A: b\r\n" * 10_000, "body cannot be read"),
}


@pytest.mark.parametrize("case", FORMS)
async def test_forms_made_to_break_their_reader_are_refused_at_once(live: Live, case: str) -> None:
    """Some were answered 500, and one of 1.5 MB held the event loop for 10 s."""
    boundary = "y" * 60 if "longer" in case else "x"
    content, said = FORMS[case]
    data = BytesIO(content.replace(b"--x", b"--" + boundary.encode()))
    await live.refused("/v1/files", data, said=said, content_type=f"multipart/form-data; boundary={boundary}")
    assert b"file-" not in (await live.get("/v1/files")).body


@pytest.mark.parametrize(("name", "kept"), [(b"\xff\xfe", "??"), (b"../../etc/passwd", "../../etc/passwd")])
async def test_a_files_name_is_only_a_name(live: Live, tmp_path: Path, name: bytes, kept: str) -> None:
    """Bytes that are no text were answered 500, after the file had been kept."""
    content = form(PURPOSE, FILE.replace(b'"a"', b'"' + name + b'"'))
    file = await live.obtain("/v1/files", content, content_type="multipart/form-data; boundary=x")
    assert (file["filename"], file["bytes"]) == (kept, 3)
    assert sorted(path.stem for path in (tmp_path / "files").iterdir()) == [file["id"]] * 2


async def test_a_file_left_unread_is_not_sent_for_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each left a traceback in the log."""
    caplog.handler.addFilter(quiet_broken_requests)
    front, size = Front(settings=FrontConfig(send_timeout=0.3)), 5 * 10**7
    async with server(tmp_path, capacity=10**8, front=front, max_file_bytes=10**8) as live:
        file = await upload(live, BytesIO(bytes(size)))
        async with live.connect() as (reader, writer):
            writer.write(f"GET /v1/files/{file['id']}/content HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            await reader.readline()
            assert is_open(file["id"])
            while is_open(file["id"]):
                await asyncio.sleep(0)
    assert not caplog.records


async def test_files_have_bounds(tmp_path: Path) -> None:
    async with server(tmp_path, capacity=500, max_file_bytes=300) as live:
        await live.refused("/v1/files", served.form(b"x" * 301), 413)
        first = await upload(live, b"x" * 300)
        await live.refused("/v1/files", served.form(b"x" * 201), 413)
        await upload(live, b"x" * 200)
        assert (await live.ask("DELETE", f"/v1/files/{first['id']}")).status == 200
        await upload(live, b"x" * 300)
    assert len([*(tmp_path / "files").glob("*.data")]) == 2
