"""Streams for clients that ask for progress or a promise: headers and comments are sent while the call waits, and
errors of backends as events.
"""

import logging
from contextlib import nullcontext

from aiohttp import web

from server.api.errors import ApiError, internal_error
from server.api.output.sse import FIRST_LOOK, HEADER, LOOKS, EventStream, PlaceNotes, look_often
from server.api.served_model import DISPATCHER, LIMITS
from server.gateway.last_events import keep_alives, last_events
from server.gateway.meta import CallMeta
from server.gateway.passage import ProxiedCall
from server.gateway.sending import send_call
from server.request_id import request_id

log = logging.getLogger(__name__)


async def send_streamed(request: web.Request, body: bytes, passage: ProxiedCall, meta: CallMeta) -> web.StreamResponse:
    """As send_call where nothing is asked for; otherwise raises ConnectionError only."""
    progress = HEADER in passage.record.asks or meta.asks_progress
    if not (passage.record.stream and (progress or passage.request.promised is not None)):
        return await send_call(request, body, passage)
    app = request.app
    events = keep_alives(request)
    async with EventStream(request, app[LIMITS], lambda: next(events)) as stream:
        passage.early = stream
        notes = PlaceNotes(stream, (passage.request,), app[DISPATCHER])
        with look_often(notes.look, FIRST_LOOK, app[LOOKS]) if progress else nullcontext():
            try:
                return await send_call(request, body, passage)
            except ConnectionError:
                raise
            except ApiError as failure:
                error = failure
            except Exception:
                log.exception("request %s failed in its stream", request_id(request))
                error = internal_error(request_id(request))
        await stream.forward(last_events(request, error, first=True))
        await stream.response.write_eof()
        return stream.response
