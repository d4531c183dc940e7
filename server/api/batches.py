"""OpenAI's /v1/batches, answered while there is room, and /v1/files."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from aiohttp import BodyPartReader, web
from msgspec import Meta

from server.access import holder_of
from server.api.batch_asker import PATHS
from server.api.errors import ApiError, bad_request, busy, invalid, shutting_down
from server.api.health import LIFE
from server.api.input.body import UNPACKED, read_body
from server.api.limits import LIMITS, Limits
from server.api.output.reply import json_response
from server.api.register import read_number
from server.batches.batch import BatchRecord, BatchStatus, LineError
from server.batches.batches import BATCHES, Batches, TooManyBatches
from server.batches.files import FileObject, NoSuchFile, StoredFile

RETRY_AFTER = 60.0  # seconds, where there are too many batches

MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]


SAME = ("id", "endpoint", "input_file_id", "status", "created_at", "expires_at")  # as in the record
# statuses with a timestamp in the reply
TIMED = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class BatchBody(msgspec.Struct, frozen=True):
    """POST /v1/batches."""

    input_file_id: Annotated[str, Meta(max_length=256)]
    endpoint: Annotated[str, Meta(max_length=256)]
    completion_window: Literal["24h"]
    metadata: Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=16)] | None = None


class BatchErrors(msgspec.Struct, frozen=True):
    """Errors of a batch's input."""

    data: list[LineError]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    """Lines of the input, and those that have an answer; 0 while the input is being read."""

    total: int
    completed: int
    failed: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, as OpenAI's object."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


Entry = TypeVar("Entry", BatchObject, FileObject)


class ListPage(msgspec.Struct, Generic[Entry], frozen=True):
    """A page of a list, as OpenAI words it."""

    data: list[Entry]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class BatchList(ListPage[BatchObject], frozen=True):
    """A page of batches."""


class FileList(ListPage[FileObject], frozen=True):
    """A page of files."""


def batches_of(request: web.Request) -> Batches:
    """Raises ApiError 404 where the server keeps none."""
    if BATCHES not in request.app:
        message = "this server keeps no files; its log tells why, unless it was started with --files-size 0"
        raise ApiError(404, message, code="no_files")
    return request.app[BATCHES]


MOST = 10_000  # entries of a page


def _send_page(request: web.Request, entries: Sequence[Entry], shape: type[ListPage[Entry]]) -> web.Response:
    """Entries after the query's `after`, its `limit` at most; raises ApiError 400."""
    after, limit, begin = request.query.get("after"), read_number(request, "limit", 1, MOST, 20), 0
    if after is not None:
        places = [place for place, entry in enumerate(entries) if entry.id == after]
        if not places:
            raise invalid("after", f"there is no {after[:200]!r}", "invalid_value")
        begin = places[0] + 1
    page = list(entries[begin : begin + limit])
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return json_response(shape(page, first, last, begin + len(page) < len(entries)))


async def create_batch(request: web.Request) -> web.Response:
    """Begin a batch of the requests in a file; raises ApiError 400, 404, 429, 503."""
    batches, body = _open_batches(request), await read_body(request, BatchBody)
    if body.endpoint not in PATHS:
        raise invalid("endpoint", f"must be one of {', '.join(PATHS)}", "invalid_value")
    try:
        record = await batches.create(body.input_file_id, body.endpoint, holder_of(request), body.metadata or {})
    except NoSuchFile:
        fault = f"there is no file {body.input_file_id!r}"
        raise invalid("input_file_id", fault, "file_not_found", status=404) from None
    except TooManyBatches as error:
        raise busy(str(error), "rate_limit_exceeded", RETRY_AFTER) from None
    return json_response(_object(record, request))


async def list_batches(request: web.Request) -> web.Response:
    """List the batches, the latest first; raises ApiError 400."""
    objects = [_object(one, request) for one in batches_of(request).all_of(holder_of(request))]
    return _send_page(request, objects, BatchList)


async def show_batch(request: web.Request) -> web.Response:
    """Show how far a batch is; raises ApiError 404."""
    return json_response(_object(_find(request), request))


async def cancel_batch(request: web.Request) -> web.Response:
    """Break a batch off; what has an answer keeps it; raises ApiError 404, 503."""
    record = _find(request)
    await _open_batches(request).cancel(record.id)
    return json_response(_object(record, request))


def _open_batches(request: web.Request) -> Batches:
    """Raises ApiError 404, and 503 during shutdown."""
    if request.app[LIFE].draining:
        raise shutting_down()
    return batches_of(request)


def _find(request: web.Request) -> BatchRecord:
    name = request.match_info["id"]
    found = batches_of(request).find(name, holder_of(request))
    if found is None:
        raise invalid("id", f"there is no batch {name[:200]!r}", "batch_not_found", status=404)
    return found


def _object(record: BatchRecord, request: web.Request) -> BatchObject:
    files = batches_of(request).files
    same: dict[str, Any] = {name: getattr(record, name) for name in SAME}
    output, error = (name if not record.under_way and files.has(name) else None for name in record.result_ids)
    return BatchObject(
        **same | {f"{status}_at": record.times.get(status) for status in TIMED},
        errors=BatchErrors(record.errors) if record.errors else None,
        output_file_id=output,
        error_file_id=error,
        request_counts=RequestCounts(record.total, record.completed, record.failed),
        metadata=record.metadata or None,
    )


T = TypeVar("T")

PURPOSES = ("batch",)

MOST_PARTS = 16  # form fields: each costs the event loop as much as many bytes of a file


class DeletedFile(msgspec.Struct, frozen=True):
    """A file that is kept no longer."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


async def upload_file(request: web.Request) -> web.Response:
    """Take in a file of JSON lines for a batch; raises ApiError 400, 408, 413, 415."""
    files, limits = batches_of(request).files, request.app[LIMITS]
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
    purpose = request.query.get("purpose")
    return _send_page(request, [_file_object(file) for file in files if purpose in (None, file.purpose)], FileList)


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


async def _parts(request: web.Request, limits: Limits) -> AsyncIterator[BodyPartReader]:
    """Raises ApiError 400 and 408."""
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


async def _chunk(part: BodyPartReader, limits: Limits) -> bytes:
    """Raises ApiError 400 and 408."""
    return bytes(await _soon(part.read_chunk(64 * 1024), limits))


async def _soon(coming: Awaitable[T], limits: Limits) -> T:
    try:
        async with asyncio.timeout(limits.body_timeout):
            return await coming
    except TimeoutError:
        raise ApiError(408, f"nothing of the file came for {limits.body_timeout:g} s", close=True) from None
    except (ValueError, AssertionError, RuntimeError) as error:  # from aiohttp
        raise bad_request(f"the form cannot be read: {error}", code="invalid_form") from None


def _too_large(limits: Limits, room: int) -> ApiError:
    message = (
        f"the file is larger than {limits.max_file_bytes} bytes (--max-file-bytes), or than the {room} bytes "
        "that there is room for (--files-size); split it, or delete files"
    )
    return ApiError(413, message, param="file", code="file_too_large", close=True)
