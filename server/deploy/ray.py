"""Nodes behind Ray Serve's proxy (`lengthwise ray`); the only module that imports ray.

    client -> Ray's proxy -> Front -> (router: least seconds of work) -> Replica -> `lengthwise serve`, a process

A lost node means a 503, or an error event in a stream.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from scheduler.wait_estimate.node_router import Job, NodeLoad, WorkRouter, list_prefixes
from server.access import check_key
from server.api.errors import ApiError, error_body
from server.api.health import Load
from server.api.output.reply import Expectation, encode
from server.deploy.settings import Cluster, Servers
from server.http.front import check_host
from server.http.operations import OPERATIONS
from server.http.proxy import HOPS, PROXYS, without

log = logging.getLogger("ray.serve")

PERIOD = 1.0  # seconds between load reports

UNBOUNDED = 1_000_000  # calls that Ray lets through: the node's queue has the bound

BLOCK = 256  # bytes of a body that are one prefix block

BYTES_PER_TOKEN = 4  # where no node can count tokens

GENERATING = frozenset(operation.path for operation in OPERATIONS if operation.generates)

OPEN = frozenset(operation.path for operation in OPERATIONS if operation.open)

LOST = ApiError(
    503,
    "the node that served this request is gone; send the request again",
    code="node_lost",
    headers={"Retry-After": "1"},
)

APP = "lengthwise"

Headers = Sequence[tuple[str, str]]

POLL = 0.1  # seconds between looks for a listening server

PATIENCE = aiohttp.ClientTimeout(2.0)  # for an estimate or a load, which the router can do without


class ByWork(RequestRouter):  # type: ignore[misc]  # it has no types where ray is not installed
    """Ranks replicas by seconds of work, with what was sent since their reports."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._work: WorkRouter[Any] = WorkRouter()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._work.keep_only(replica.replica_id for replica in replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Best first; the request counts as sent at once."""
        replicas = {replica.replica_id: replica for replica in candidate_replicas}
        for name, replica in replicas.items():
            if stats := replica.routing_stats:
                self._work.tell(name, msgspec.convert(stats, NodeLoad))
        job = None if pending_request is None else pending_request.kwargs.get("job")
        now = time.time()
        ranked = self._work.rank(replicas, job or Job(0, 0.0), now)
        if job is not None and ranked:
            self._work.note_sent(ranked[0], job, now)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # there are no others to try
        return [[replicas[name]] for name in ranked]


class Replica:
    """One node: its own `lengthwise serve` on a Unix socket. Each ends with the other."""

    def __init__(self, flags: Sequence[str], key: str | None) -> None:
        """`flags` of `lengthwise serve`; `key`: one of its API keys, if any."""
        self._folder = Path(tempfile.mkdtemp(prefix="lengthwise-"))
        self._socket = self._folder / "node.sock"
        self._flags = [*flags, "--uds", str(self._socket)]
        self._own = {} if key is None else {"Authorization": f"Bearer {key}"}

    async def reconfigure(self, config: object) -> None:
        """Start the server and wait until it listens; Ray calls this once, first."""
        words = [sys.executable, "-P", "-m", "server.worker_process", str(os.getpid()), "serve", *self._flags]
        self._process = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL)
        self._session = aiohttp.ClientSession(
            "http://lengthwise",  # placeholder host of a socket
            connector=aiohttp.UnixConnector(str(self._socket), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        while not self._socket.exists():  # it appears once the server listens
            if self._process.returncode is not None:
                raise RuntimeError(f"lengthwise serve ended with exit code {self._process.returncode}; see its log")
            await asyncio.sleep(POLL)
        self._watch = asyncio.ensure_future(self._end_with_server())

    async def _end_with_server(self) -> None:
        code = await self._process.wait()
        log.error("lengthwise serve ended with exit code %d, and the replica with it", code)
        os._exit(1)

    async def record_routing_stats(self) -> dict[str, Any]:
        """The load, at this machine's time."""
        asked = self._session.get("/load", headers=self._own, timeout=PATIENCE, raise_for_status=True)
        async with asked as answer:
            told = msgspec.json.decode(await answer.read(), type=Load)
        at, length = time.time() - told.age_s, told.mean_output_tokens
        return asdict(NodeLoad(at, told.work_s, told.prices, told.requests, told.slots, length))

    async def call(
        self, method: str, path: str, headers: Headers, body: bytes, job: Job | None = None
    ) -> AsyncIterator[tuple[int, Headers] | bytes]:
        """Status and headers, then the body as it comes; `job` is for the router."""
        async with self._session.request(method, path, headers=without(headers, HOPS), data=body or None) as answer:
            yield answer.status, without(answer.headers.items(), HOPS | PROXYS)
            async for piece in answer.content.iter_any():
                yield piece

    async def estimate(self, headers: Headers, body: bytes) -> tuple[int, float | None] | None:
        """Tokens of a call's prompts and predicted answers; None where unknown."""
        own = without(headers, HOPS)
        asked = self._session.post("/v1/estimate", headers=own, data=body, timeout=PATIENCE, raise_for_status=True)
        with suppress(aiohttp.ClientError, TimeoutError):
            async with asked as answer:
                told = msgspec.json.decode(await answer.read(), type=Expectation)
                predicted = told.predicted_tokens
                return told.prompt_tokens, None if predicted is None else predicted.median
        return None

    async def __del__(self) -> None:
        """Drain, and return when the server has ended."""
        if hasattr(self, "_watch"):  # it has started
            self._watch.cancel()
            if self._process.returncode is None:
                self._process.terminate()
                await self._process.wait()
            await self._session.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class RayFront:
    """Checks a call as `lengthwise serve` does, and passes it to a node."""

    def __init__(self, nodes: Any, servers: Servers) -> None:
        self._nodes = nodes
        self._servers = servers

    async def __call__(self, request: Request) -> Response:
        try:
            body = await self._read(request)
        except ApiError as error:
            return _refusal(error)
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

    async def _read(self, request: Request) -> bytes:
        servers, config, body = self._servers, self._servers.config, bytearray()
        if servers.hosts is not None:
            check_host(servers.hosts, request.headers.get("host", ""))
        if len(servers.keys) and request.url.path not in OPEN:
            check_key(servers.keys, request.headers)
        most = config.max_body_bytes
        too_large = ApiError(413, f"the body is larger than {most} bytes (--max-body-bytes)", close=True)
        if int(request.headers.get("content-length", 0)) > most:
            raise too_large
        try:
            async with asyncio.timeout(config.body_timeout):
                async for piece in request.stream():
                    body += piece
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {config.body_timeout:g} s", close=True) from None
        return bytes(body)

    async def _describe(self, headers: Headers, body: bytes) -> Job:
        told = None
        with suppress(Exception):  # the node is gone; another gets the call
            told = await self._nodes.estimate.remote(headers, body)
        prompt, output = told or (len(body) // BYTES_PER_TOKEN, None)
        return Job(prompt, output, list_prefixes(body, BLOCK))


async def _body(answer: Any, first: bytes, is_stream: bool) -> AsyncIterator[bytes]:
    """The rest; a broken stream ends with an error event, another answer without its end."""
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


def _refusal(error: ApiError) -> Response:
    return Response(encode(error_body(error)), error.status, dict(error.headers or {}), "application/json")


def build(servers: Servers, settings: Cluster) -> serve.Application:
    config = RequestRouterConfig(
        request_router_class=ByWork if settings.router == "work" else settings.router,
        request_routing_stats_period_s=PERIOD,
        request_routing_stats_timeout_s=5 * PERIOD,
    )
    common = {"max_ongoing_requests": UNBOUNDED, "graceful_shutdown_timeout_s": servers.config.shutdown_timeout}
    replicas = serve.deployment(Replica).options(
        name="lengthwise",
        num_replicas=settings.nodes,
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        request_router_config=config,
        health_check_period_s=PERIOD,
        user_config={},  # or Replica.reconfigure is not called
        **common,
    )
    front = serve.deployment(RayFront).options(name="front", ray_actor_options={"num_cpus": 0}, **common)
    return front.bind(replicas.bind(servers.flags, servers.key), servers)


def serve_until_signal(servers: Servers, settings: Cluster) -> None:
    """Until SIGINT or SIGTERM; running calls end as with `lengthwise serve`."""
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before there are threads, which inherit it
    ray.init(address=settings.address, include_dashboard=False)
    try:
        serve.start(http_options={"host": settings.host, "port": settings.port})
        serve.run(build(servers, settings), name=APP, route_prefix="/")
        print(f"ready on http://{settings.host}:{settings.port} with {settings.nodes} nodes", flush=True)
        signal.sigwait(signals)
        serve.delete(APP)  # drains it; a shutdown would end the proxy first
    finally:
        serve.shutdown()
        ray.shutdown()
