"""Sends requests and times the stream. Never retries; a failure is an outcome."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
import orjson

from loadgen.client.request import Clock, PreparedRequest, RequestFailure, RequestOutcome, Status
from loadgen.client.transcript import RequestError, Transcript, error_message
from models.errors import UserError

CONNECT_TIMEOUT = 30.0
LINGER = 1.0  # seconds for the response's end after the end marker, so that the connection can be reused
MAX_ERROR_BYTES = 64 * 1024
OVERLOAD = (429, 503)  # load rejections: OpenAI says 429, vLLM and SGLang 503


class ServerError(UserError):
    """The server cannot be asked at all."""


@dataclass(frozen=True, slots=True)
class Target:
    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 600.0  # seconds without a byte

    def url(self, path: str) -> str:
        return self.base_url.rstrip("/").removesuffix("/v1") + path


@dataclass(frozen=True, slots=True)
class Client:
    target: Target
    session: aiohttp.ClientSession
    id_prefix: str = "bench-"

    async def model(self) -> str:
        """The first listed model. Raises ServerError."""
        url = self.target.url("/v1/models")
        try:
            async with self.session.get(url) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            remedy = "start one with `lengthwise serve`, or name another with --base-url"
            raise ServerError(f"no server answers at {url}: {remedy}") from error
        if response.status != 200:
            remedy = "give a key with --api-key" if response.status in (401, 403) else "name a --model"
            raise ServerError(f"{url} answers with status {response.status}: {error_message(body)}; {remedy}")
        try:
            return str(orjson.loads(body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise ServerError(f"{url} lists no model: name one with --model") from error

    async def send(self, request: PreparedRequest, clock: Clock) -> RequestOutcome:
        """`clock`: seconds since the run's start."""
        sent = clock()
        transcript = Transcript()
        status: Status = "completed"
        failure: RequestFailure | None = None
        try:
            async with asyncio.timeout(request.cancel_after) as stay:
                await self._exchange(request, transcript, clock)
        except TimeoutError:
            assert stay.expired()
            status = "completed" if transcript.done else "cancelled"
        except RequestError as error:
            failure = error.failure
            status = "rejected" if failure.http_status in OVERLOAD else "failed"
        times = tuple(transcript.token_times)
        return RequestOutcome(
            request=request,
            status=status,
            sent=sent,
            token_times=times,
            end=transcript.end if status == "completed" else clock(),
            output_tokens=len(times) if transcript.output_tokens is None else transcript.output_tokens,
            prompt_tokens=transcript.prompt_tokens,
            cached_tokens=transcript.cached_tokens,
            counted=transcript.output_tokens is not None,
            queue_time=transcript.queue_time,
            foretold=transcript.foretold,
            failure=failure,
            text=transcript.text,
        )

    async def _exchange(self, request: PreparedRequest, transcript: Transcript, clock: Clock) -> None:
        headers = {"x-request-id": f"{self.id_prefix}{request.index}", "x-lengthwise-estimate": "1"}
        try:
            async with self.session.post(self.target.url(request.path), data=request.body, headers=headers) as response:
                await _require_stream(response)
                async for chunk in response.content.iter_any():
                    transcript.feed(chunk, clock())
                    if transcript.done:
                        await _read_to_end(response)
                        break
            transcript.close()
        except (aiohttp.ClientError, OSError) as error:
            raise RequestError(_failure(error, self.target.timeout)) from error


@asynccontextmanager
async def connect(target: Target, *, id_prefix: str = "bench-") -> AsyncIterator[Client]:
    """Without a bound on connections."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=target.timeout)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=timeout,
        headers={"Content-Type": "application/json", **target.headers},
    ) as session:
        yield Client(target, session, id_prefix)


async def _require_stream(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        said = error_message(await response.content.read(MAX_ERROR_BYTES))
        raise RequestError(RequestFailure("http", f"status {response.status}: {said}", response.status))
    if response.content_type != "text/event-stream":
        raise RequestError(RequestFailure("protocol", f"the server sent {response.content_type}, not a stream"))


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(LINGER):
            while await response.content.readany():
                pass


def _failure(error: Exception, timeout: float) -> RequestFailure:
    said = str(error) or type(error).__name__
    match error:
        case aiohttp.ConnectionTimeoutError():
            return RequestFailure("connection", f"no connection within {CONNECT_TIMEOUT:g} s")
        case TimeoutError():
            return RequestFailure("timeout", f"nothing came for {timeout:g} s (--timeout)")
        case aiohttp.ClientConnectorError() | aiohttp.InvalidURL():
            return RequestFailure("connection", said)
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError() | OSError():
            return RequestFailure("closed", f"the server closed the connection: {said}")
        case _:
            return RequestFailure("protocol", said)
