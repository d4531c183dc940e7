"""/v1/batches: requests from a file, answered when there is room for them, in OpenAI's shapes."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from aiohttp import web
from msgspec import Meta

from server.api.batches.asker import PATHS, ListPage, batches_of, page_of
from server.api.errors import ApiError, bad_request, busy, shutting_down
from server.api.health import LIFE
from server.api.input.body import read_body
from server.api.output.reply import json_response
from server.batches.batch import BatchRecord, BatchStatus
from server.batches.batches import Batches, TooManyBatches
from server.batches.files import NoSuchFile
from server.batches.lines import LineError
from server.http.access import holder_of

RETRY_AFTER = 60.0
"""Seconds after which one who has too many batches under way may try again."""

MetadataKey: TypeAlias = Annotated[str, Meta(max_length=64)]
MetadataValue: TypeAlias = Annotated[str, Meta(max_length=512)]


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


class BatchList(ListPage[BatchObject], frozen=True):
    """A page of batches."""


async def create_batch(request: web.Request) -> web.Response:
    """Begin a batch of the requests in a file; raises ApiError 400, 404, 429, 503."""
    batches, body = _open_batches(request), await read_body(request, BatchBody)
    if body.endpoint not in PATHS:
        raise bad_request(f"endpoint: must be one of {', '.join(PATHS)}", "endpoint", "invalid_value")
    try:
        record = await batches.create(body.input_file_id, body.endpoint, holder_of(request), body.metadata or {})
    except NoSuchFile:
        message = f"input_file_id: there is no file {body.input_file_id!r}"
        raise ApiError(404, message, param="input_file_id", code="file_not_found") from None
    except TooManyBatches as error:
        raise busy(str(error), "rate_limit_exceeded", RETRY_AFTER) from None
    return json_response(_object(record, request))


async def list_batches(request: web.Request) -> web.Response:
    """List the batches, the latest first; raises ApiError 400."""
    objects = [_object(one, request) for one in batches_of(request).all_of(holder_of(request))]
    return json_response(page_of(request, objects, BatchList))


async def show_batch(request: web.Request) -> web.Response:
    """Show how far a batch is; raises ApiError 404."""
    return json_response(_object(_find(request), request))


async def cancel_batch(request: web.Request) -> web.Response:
    """Break a batch off; what has an answer keeps it; raises ApiError 404, 503."""
    record = _find(request)
    await _open_batches(request).cancel(record.id)
    return json_response(_object(record, request))


def _open_batches(request: web.Request) -> Batches:
    """The server's batches, to change one; raises ApiError 404, and 503 while the server ends."""
    if request.app[LIFE].draining:
        raise shutting_down()
    return batches_of(request)


def _find(request: web.Request) -> BatchRecord:
    name = request.match_info["id"]
    found = batches_of(request).find(name, holder_of(request))
    if found is None:
        raise ApiError(404, f"id: there is no batch {name[:200]!r}", param="id", code="batch_not_found")
    return found


def _object(record: BatchRecord, request: web.Request) -> BatchObject:
    files = batches_of(request).files
    output, error = (name if not record.under_way and files.has(name) else None for name in record.result_ids)
    return BatchObject(
        id=record.id,
        endpoint=record.endpoint,
        errors=BatchErrors(record.errors) if record.errors else None,
        input_file_id=record.input_file_id,
        status=record.status,
        output_file_id=output,
        error_file_id=error,
        created_at=record.created_at,
        expires_at=record.expires_at,
        request_counts=RequestCounts(record.total, record.completed, record.failed),
        metadata=record.metadata or None,
        in_progress_at=record.times.get("in_progress"),
        finalizing_at=record.times.get("finalizing"),
        completed_at=record.times.get("completed"),
        failed_at=record.times.get("failed"),
        expired_at=record.times.get("expired"),
        cancelling_at=record.times.get("cancelling"),
        cancelled_at=record.times.get("cancelled"),
    )
