"""A server that keeps files, and batches of lines under way on it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from server.http.service import FilesPlace
from tests.server.live import CHAT, Live, live_server


@asynccontextmanager
async def server(folder: Path, *, capacity: int = 10**6, **fields: Any) -> AsyncIterator[Live]:
    async with live_server(files=FilesPlace(folder, capacity), **fields) as live:
        yield live


def line(name: str, url: str = CHAT, **fields: object) -> bytes:
    body = {"messages": [{"role": "user", "content": name}], **fields}
    return orjson.dumps({"custom_id": name, "method": "POST", "url": url, "body": body}) + b"\n"


def form(content: bytes | BytesIO, purpose: str | None = "batch") -> aiohttp.FormData:
    fields = aiohttp.FormData()
    if purpose is not None:
        fields.add_field("purpose", purpose)
    fields.add_field("file", content, filename="in.jsonl")
    return fields


async def upload(live: Live, content: bytes | BytesIO, **headers: str) -> Any:
    return await live.obtain("/v1/files", form(content), **headers)


async def begin(live: Live, content: bytes, endpoint: str = CHAT) -> str:
    """The id of a batch of these lines."""
    file = await upload(live, content)
    batch = await live.obtain("/v1/batches", body(file["id"], endpoint))
    assert batch["status"] == "validating"
    return str(batch["id"])


def body(file_id: str, endpoint: str = CHAT, **fields: object) -> dict[str, object]:
    return {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **fields}


async def run(live: Live, content: bytes, endpoint: str = CHAT, *, end: str = "completed") -> Any:
    """A batch of these lines once it has ended so."""
    return await until(live, await begin(live, content, endpoint), end)


async def until(live: Live, name: str, *statuses: str, lines: int = 10**6) -> Any:
    """A batch once it has come to one of these statuses, or has the answers of so many lines."""
    while True:
        batch = (await live.get(f"/v1/batches/{name}")).json
        if batch["status"] in statuses or batch["request_counts"]["completed"] >= lines:
            return batch


def replies(lines: dict[str, Any]) -> dict[str, Any]:
    """Bodies of the lines' responses."""
    return {name: one["response"]["body"] for name, one in lines.items()}


async def results(live: Live, file_id: str | None) -> dict[str, Any]:
    """The lines of an output or error file, by their custom_id; there is one for each."""
    if file_id is None:
        return {}
    reply = await live.get(f"/v1/files/{file_id}/content")
    assert reply.status == 200
    lines = [orjson.loads(one) for one in reply.body.splitlines()]
    found = {one["custom_id"]: one for one in lines}
    assert len(found) == len(lines)
    return found
