"""OpenAI's /v1/batches, answered while there is room."""

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from server.access import holder_of
from server.api.batches.asker import PATHS
from server.api.errors import ApiError, busy, invalid, shutting_down
from server.api.health import LIFE
from server.api.input.body import read_body
from server.api.output.reply import json_response
from server.api.register import read_number
from server.batches.batch import BatchRecord, BatchStatus, LineError
from server.batches.batches import BATCHES, Batches, TooManyBatches
from server.batches.files import FileObject, NoSuchFile

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


def batches_of(request: web.Request) -> Batches:
    """Raises ApiError 404 where the server keeps none."""
    if BATCHES not in request.app:
        message = "this server keeps no files; its log tells why, unless it was started with --files-size 0"
        raise ApiError(404, message, code="no_files")
    return request.app[BATCHES]


MOST = 10_000  # entries of a page


def send_page(request: web.Request, entries: Sequence[Entry], shape: type[ListPage[Entry]]) -> web.Response:
    """Entries after the query's `after`, its `limit` at most; raises ApiError 400."""
    after, limit = request.query.get("after"), read_number(request, "limit", 1, MOST, 20)
    ids = [entry.id for entry in entries]
    if after is not None and after not in ids:
        raise invalid("after", f"there is no {after[:200]!r}", "invalid_value")
    begin = 0 if after is None else ids.index(after) + 1
    page = list(entries[begin : begin + limit])
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return json_response(shape(page, first, last, begin + len(page) < len(entries)))


async def create_batch(request: web.Request) -> web.Response:
    """Begin a batch of the requests in a file; raises ApiError 400, 404, 429, 503."""
    batches, body = open_batches(request), await read_body(request, BatchBody)
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
    return send_page(request, objects, BatchList)


async def show_batch(request: web.Request) -> web.Response:
    """Show how far a batch is; raises ApiError 404."""
    return json_response(_object(_find(request), request))


async def cancel_batch(request: web.Request) -> web.Response:
    """Break a batch off; what has an answer keeps it; raises ApiError 404, 503."""
    record = _find(request)
    await open_batches(request).cancel(record.id)
    return json_response(_object(record, request))


def open_batches(request: web.Request) -> Batches:
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
