"""Several nodes behind Ray Serve's proxy: `lengthwise ray`.

    client -> Ray's proxy -> Front -> (router: least seconds of work) -> Replica -> `lengthwise serve`, a process

The front reads a call, asks a node what it will cost, and hands both to the router of its handle; it passes the answer
on as it comes. What is lost with a node is told as a 503, or, once a stream has begun, as an event with the error. The
rule by which nodes are ranked is scheduler/placement.py; nodes tell their load as Ray's routing statistics. It
imports ray, so only what starts it may import this.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from scheduler.placement import Job, NodeLoad, WorkRouter, list_prefixes
from scheduler.waiting.prices import Prices
from server.api.errors import ApiError, error_body
from server.api.operations import OPERATIONS
from server.api.output.reply import encode
from server.cli.config import ServeConfig
from server.deploy.node import Headers, Node
from server.deploy.settings import Cluster, Servers
from server.http.access import check_key
from server.http.cors import check_host

log = logging.getLogger("ray.serve")

PERIOD = 1.0
"""Seconds between two times that a node tells its load, and that it is seen to live."""

UNBOUNDED = 1_000_000
"""Calls at a time that Ray lets through: a node's own queue has the bound."""

BLOCK = 256
"""Bytes of a body's beginning that are remembered together, as what a node keeps."""

BYTES_PER_TOKEN = 4
"""Bytes that a token is taken to have where no node can count tokens."""

GENERATING = frozenset(operation.path for operation in OPERATIONS if operation.generates)

OPEN = frozenset(operation.path for operation in OPERATIONS if operation.open)

LOST = ApiError(
    503,
    "the node that served this request is gone; send the request again",
    code="node_lost",
    headers={"Retry-After": "1"},
)

APP = "lengthwise"


class ByWork(RequestRouter):  # type: ignore[misc]  # it has no types where ray is not installed
    """Ranks replicas by seconds of work, and counts what it has sent them since they told theirs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._work: WorkRouter[Any] = WorkRouter()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._work.keep_only(replica.replica_id for replica in replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All replicas, the best first. The request counts as sent at once: others are ranked before it has arrived."""
        replicas = {replica.replica_id: replica for replica in candidate_replicas}
        for name, replica in replicas.items():
            if stats := replica.routing_stats:
                self._work.tell(name, NodeLoad(**{**stats, "prices": Prices(**stats["prices"])}))
        job = None if pending_request is None else pending_request.kwargs.get("job")
        now = time.time()
        ranked = self._work.rank(replicas, job or Job(0, 0.0), now)
        if job is not None and ranked:
            self._work.note_sent(ranked[0], job, now)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # there are no others to try
        return [[replicas[name]] for name in ranked]


class Replica:
    """One node; it ends when its server does, and the other way round."""

    def __init__(self, flags: Sequence[str], key: str | None) -> None:
        self._node = Node(flags, key)
        self._started = asyncio.ensure_future(self._start())

    async def _start(self) -> None:
        await self._node.start()
        self._watch = asyncio.ensure_future(self._end_with_server())

    async def _end_with_server(self) -> None:
        code = await self._node.ended()
        log.error("lengthwise serve ended with exit code %d, and the replica with it", code)
        os._exit(1)

    async def reconfigure(self, config: object) -> None:
        """Ray calls this before it sends anything, so it waits for the server."""
        await self._started

    async def record_routing_stats(self) -> dict[str, Any]:
        return asdict(await self._node.load())

    async def call(
        self, method: str, path: str, headers: Headers, body: bytes, job: Job | None = None
    ) -> AsyncIterator[tuple[int, Headers] | bytes]:
        """The server's answer, headers first; `job` is for the router."""
        async for piece in self._node.call(method, path, headers, body):
            yield piece

    async def estimate(self, headers: Headers, body: bytes) -> tuple[int, float | None] | None:
        return await self._node.estimate(headers, body)

    async def __del__(self) -> None:
        if hasattr(self, "_watch"):
            self._watch.cancel()
        await self._node.stop()


class Front:
    """Looks at a call as `lengthwise serve` does before it reads anything, and passes it on to a node."""

    def __init__(self, nodes: Any, servers: Servers) -> None:
        self._nodes = nodes
        self._servers = servers

    async def __call__(self, request: Request) -> Response:
        try:
            self._check(request)
            body = await self._read(request)
        except ApiError as error:
            return _refusal(error)
        return await self._pass_on(request, body)

    def _check(self, request: Request) -> None:
        """Raise ApiError 401 and 421."""
        servers = self._servers
        if servers.hosts is not None:
            check_host(servers.hosts, request.headers.get("host", ""))
        if len(servers.keys) and request.url.path not in OPEN:
            check_key(servers.keys, request.headers)

    async def _read(self, request: Request) -> bytes:
        """The body; raises ApiError 408 and 413, the latter before more is read than may be."""
        config, body = self._servers.config, bytearray()
        if int(request.headers.get("content-length", 0)) > config.max_body_bytes:
            raise _too_large(config)
        try:
            async with asyncio.timeout(config.body_timeout):
                async for piece in request.stream():
                    body += piece
                    if len(body) > config.max_body_bytes:
                        raise _too_large(config)
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {config.body_timeout:g} s", close=True) from None
        return bytes(body)

    async def _pass_on(self, request: Request, body: bytes) -> Response:
        """A node's answer as it comes."""
        headers, path = list(request.headers.items()), request.url.path
        job = await self._describe(headers, body) if request.method == "POST" and path in GENERATING else None
        target = f"{path}?{request.url.query}" if request.url.query else path
        answer = self._nodes.options(stream=True).call.remote(request.method, target, headers, body, job=job)
        try:
            status, replied = await anext(answer)
            first = await anext(answer, b"")
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except Exception:
            log.exception("a node was lost before its answer began")
            return _refusal(LOST)
        is_stream = any(name.lower() == "content-type" and "event-stream" in value for name, value in replied)
        response = StreamingResponse(_body(answer, first, is_stream), status)
        response.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in replied]
        return response

    async def _describe(self, headers: Headers, body: bytes) -> Job:
        """A call as the router ranks nodes for it: its tokens, and the beginnings of its body."""
        prefixes = list_prefixes(body, BLOCK)
        try:
            told = await self._nodes.estimate.remote(headers, body)
        except asyncio.CancelledError:
            raise
        except Exception:  # of whatever kind: the node is gone, and another will get the call
            told = None
        prompt, output = told or (len(body) // BYTES_PER_TOKEN, None)
        return Job(prompt, output, prefixes)


async def _body(answer: Any, first: bytes, is_stream: bool) -> AsyncIterator[bytes]:
    """The rest of an answer; a stream that breaks off ends with the error, anything else without its end."""
    try:
        yield first
        async for piece in answer:
            yield piece
    except (asyncio.CancelledError, GeneratorExit):
        answer.cancel()
        raise
    except Exception:
        log.exception("a node was lost within its answer")
        if not is_stream:
            raise
        yield b"data: " + encode(error_body(LOST)) + b"\n\n"


def _too_large(config: ServeConfig) -> ApiError:
    return ApiError(413, f"the body is larger than {config.max_body_bytes} bytes (--max-body-bytes)", close=True)


def _refusal(error: ApiError) -> Response:
    return Response(encode(error_body(error)), error.status, dict(error.headers or {}), "application/json")


def build(servers: Servers, settings: Cluster) -> serve.Application:
    """The application: servers behind a front."""
    config = RequestRouterConfig(
        request_router_class=ByWork if settings.router == "work" else settings.router,
        request_routing_stats_period_s=PERIOD,
        request_routing_stats_timeout_s=5 * PERIOD,
    )
    replicas = serve.deployment(Replica).options(
        name="lengthwise",
        num_replicas=settings.nodes,
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        max_ongoing_requests=UNBOUNDED,
        request_router_config=config,
        health_check_period_s=PERIOD,
        graceful_shutdown_timeout_s=servers.config.shutdown_timeout,
        user_config={},
    )
    front = serve.deployment(Front).options(
        name="front",
        max_ongoing_requests=UNBOUNDED,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=servers.config.shutdown_timeout,
    )
    return front.bind(replicas.bind(servers.flags, servers.key), servers)


def serve_until_signal(servers: Servers, settings: Cluster) -> None:
    """Run the application until SIGINT or SIGTERM; calls that run then may end as with `lengthwise serve`."""
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before there are threads, which then have them blocked too
    ray.init(address=settings.address, include_dashboard=False)
    try:
        serve.start(http_options={"host": settings.host, "port": settings.port})
        serve.run(build(servers, settings), name=APP, route_prefix="/")
        print(f"ready on http://{settings.host}:{settings.port} with {settings.nodes} nodes", flush=True)
        signal.sigwait(signals)
        serve.delete(APP)  # which drains it; a shutdown would end the proxy first, and all calls with it
    finally:
        serve.shutdown()
        ray.shutdown()
