"""OpenAI's /v1/files: JSON lines for batches, and their results."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Literal, TypeVar

import msgspec
from aiohttp import BodyPartReader, web

from server.access import holder_of
from server.api.batches.batches import ListPage, batches_of, send_page
from server.api.errors import ApiError, bad_request, invalid
from server.api.input.body import UNPACKED
from server.api.output.reply import json_response
from server.api.served_model import LIMITS
from server.batches.files import FileObject, NoSuchFile, StoredFile
from server.config import ServeConfig

T = TypeVar("T")

PURPOSES = ("batch",)

MOST_PARTS = 16  # form fields: each costs the event loop as much as many bytes of a file


class FileList(ListPage[FileObject], frozen=True):
    """A page of files."""


class DeletedFile(msgspec.Struct, frozen=True):
    """A file that is kept no longer."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


async def upload_file(request: web.Request) -> web.Response:
    """Take in a file of JSON lines for a batch; raises ApiError 400, 408, 413, 415."""
    files, limits = batches_of(request).files, request.app[LIMITS]
    assert isinstance(limits, ServeConfig), "gateways keep no files"
    if request.headers.get("Content-Encoding", "").strip().lower() not in UNPACKED:
        raise ApiError(415, "Content-Encoding: files are read as they come; send the form as it is", close=True)
    if request.content_type != "multipart/form-data":
        raise bad_request("send a form (multipart/form-data) with the fields purpose and file")
    purpose, filename, size, holder = None, None, 0, holder_of(request)
    if not files.room_of(holder):
        raise _too_large(limits, 0)
    with files.draft(holder) as (name, content):
        async for part in _parts(request, limits):
            if part.name == "purpose":
                purpose = (await _chunk(part, limits)).decode("utf-8", "replace")
            elif part.name == "file":
                if filename is not None:
                    raise invalid("file", "send one at a time")
                filename = (part.filename or "file").encode("utf-8", "replace").decode()[:256]
                while chunk := await _chunk(part, limits):
                    size += len(chunk)
                    if size > limits.max_file_bytes or not files.take_room(name, len(chunk)):
                        raise _too_large(limits, files.room_of(holder))
                    await asyncio.to_thread(content.write, chunk)
        if purpose not in PURPOSES:
            raise invalid("purpose", f"must be one of {', '.join(PURPOSES)}", "invalid_value")
        if filename is None:
            raise invalid("file", "is missing")
        content.flush()
        return json_response(_file_object(await asyncio.to_thread(files.keep, name, filename, purpose)))


async def list_files(request: web.Request) -> web.Response:
    """List the files that are kept, the latest first; raises ApiError 400."""
    files = batches_of(request).files.all_of(holder_of(request))
    purpose, order = request.query.get("purpose"), request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", "must be asc or desc", "invalid_value")
    found = [_file_object(file) for file in files if purpose in (None, file.purpose)]
    return send_page(request, found[:: -1 if order == "asc" else 1], FileList)


async def show_file(request: web.Request) -> web.Response:
    """Describe a file; raises ApiError 404."""
    return json_response(_file_object(_find_file(request)))


async def delete_file(request: web.Request) -> web.Response:
    """Remove a file; raises ApiError 400 while a batch reads it, 404."""
    batches, file = batches_of(request), _find_file(request)
    if batches.uses(file.id):
        raise invalid("id", f"a batch under way reads {file.id}; cancel that first", "file_in_use")
    await asyncio.to_thread(batches.files.remove, file.id, file.holder)
    return json_response(DeletedFile(file.id))


async def send_content(request: web.Request) -> web.StreamResponse:
    """Send what is in a file; raises ApiError 404."""
    file = _find_file(request)
    return web.FileResponse(batches_of(request).files.path(file.id), headers={"Content-Type": "application/jsonl"})


def _find_file(request: web.Request) -> StoredFile:
    try:
        return batches_of(request).files.find(request.match_info["id"], holder_of(request))
    except NoSuchFile as error:
        raise invalid("id", f"there is no file {str(error)[:200]!r}", "file_not_found", status=404) from None


def _file_object(file: StoredFile) -> FileObject:
    return msgspec.convert(file, FileObject, from_attributes=True)


async def _parts(request: web.Request, limits: ServeConfig) -> AsyncIterator[BodyPartReader]:
    form = await _soon(request.multipart(), limits)
    for _ in range(MOST_PARTS):
        part = await _soon(form.next(), limits)
        if part is None:
            return
        if not isinstance(part, BodyPartReader):
            break
        yield part
    message = f"the form cannot be read: it has more than {MOST_PARTS} fields, or one with fields of its own"
    raise bad_request(message, code="invalid_form")


async def _chunk(part: BodyPartReader, limits: ServeConfig) -> bytes:
    return bytes(await _soon(part.read_chunk(64 * 1024), limits))


async def _soon(coming: Awaitable[T], limits: ServeConfig) -> T:
    try:
        async with asyncio.timeout(limits.body_timeout):
            return await coming
    except TimeoutError:
        raise ApiError(408, f"nothing of the file came for {limits.body_timeout:g} s", close=True) from None
    except (ValueError, AssertionError, RuntimeError) as error:  # from aiohttp
        raise bad_request(f"the form cannot be read: {error}", code="invalid_form") from None


def _too_large(limits: ServeConfig, room: int) -> ApiError:
    most = f"{limits.max_file_bytes} bytes (--max-file-bytes), or than the {room} bytes left (--files-size)"
    message = f"the file is larger than {most}; split it, or delete files"
    return ApiError(413, message, param="file", code="file_too_large", close=True)
