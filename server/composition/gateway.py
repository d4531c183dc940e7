"""The composition root of a gateway: queue, predictor and API before other engines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import aiohttp

from engine.messages import Report
from scheduler.assembly import SchedulerParts, assemble
from scheduler.batching.batcher import BatchLimits as Batching
from scheduler.clock import MonotonicClock, background, watch_lag
from scheduler.dispatcher import Dispatcher
from scheduler.length.features import TokenFeatures
from scheduler.length.online import fit
from scheduler.options import Ordering, Scheduling
from scheduler.placement import idle_first, least_unread
from scheduler.strategy import STRATEGIES
from server.composition.scheduling import shares_of
from server.config import ConfigError, GatewayConfig
from server.dashboard.feed import Feed
from server.dashboard.scene import DashboardState
from server.gateway.asking import BACKENDS, SESSION
from server.gateway.backend import ROOM, Backend
from server.gateway.meta import TABLE
from server.gateway.operations import OPERATIONS
from server.gateway.passage import PASSAGES, ProxiedCalls
from server.gateway.probe import check_start, watch_backends
from server.gateway.slots import InferredSlots
from server.http.service import Service
from server.keys import read_key_file
from server.lengths.lengths import PredictorContext, open_recorded_lengths
from server.lengths.process import NicedProcess
from server.observe.gauges import LAG_INTERVAL, Gauges, log_throughput
from server.observe.metrics import MetricsCollector

CONNECTING = 10.0  # seconds to connect to a backend

IDLE = 2.0  # seconds of idle connections: common backends close theirs after five

FIRST_SLOTS = 8  # assumed before any were counted


@asynccontextmanager
async def open_gateway(config: GatewayConfig) -> AsyncIterator[Service]:
    """Leaving ends all connections. Raises ConfigError."""
    passages, metrics, feed = ProxiedCalls(), MetricsCollector(config.name), Feed()
    async with AsyncExitStack() as stack:
        niced = stack.enter_context(closing(NicedProcess()))
        noted = metrics.prediction.observe, metrics.late.observe
        context = PredictorContext(*noted, submit=niced.submit, fit=partial(niced.run, fit))
        lengths = await open_recorded_lengths(stack, config, config.name, TokenFeatures.hashed(TABLE), context)

        def deliver(report: Report) -> None:
            for receive in (metrics.receive, feed.receive, dispatcher.receive):
                receive(report)

        backends = [
            Backend(index, url.rstrip("/"), deliver, InferredSlots(config.slots), passages.open, key)
            for index, (url, key) in enumerate(zip(config.urls, keys_of(config), strict=True))
        ]
        parts, observers = _parts_for(config, metrics), (metrics, lengths, feed, passages)
        dispatcher = Dispatcher(parts, backends, MonotonicClock(), observers, patient=True)
        session = await stack.enter_async_context(_open_session())
        feed.show(DashboardState(dispatcher, config.name, config.strategy, ROOM))
        await check_start(backends, session, wait=config.wait)
        await stack.enter_async_context(background(dispatcher.run(), "dispatcher"))
        await stack.enter_async_context(background(watch_backends(backends, dispatcher, session), "backends"))
        await stack.enter_async_context(background(watch_lag(metrics.lag.observe, LAG_INTERVAL), "loop lag"))
        await stack.enter_async_context(background(log_throughput(metrics, dispatcher.table), "throughput"))
        Gauges(metrics, dispatcher, lengths, feed)
        yield Service(
            dispatcher,
            None,
            title=config.name,
            operations=OPERATIONS,
            parts={PASSAGES: passages, SESSION: session, BACKENDS: config},
            limits=config,
            lengths=lengths,
            metrics=metrics,
            feed=feed,
        )


LOCAL = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")


def check_backends(config: GatewayConfig) -> None:
    """Raises ConfigError."""
    if not config.backend:
        raise ConfigError("name a server: --backend http://127.0.0.1:8001/v1")
    if any(keys_of(config)) and config.pass_client_keys:
        raise ConfigError("--pass-client-keys: backends that have a key of their own are sent no other")
    _check_urls(config)
    strategy = STRATEGIES[config.strategy]
    if not strategy.only_admits:
        raise ConfigError(f"--strategy {config.strategy} pauses requests or closes batches, which no backend can do")
    if strategy.length == "oracle":
        raise ConfigError(f"--strategy {config.strategy} wants true lengths, which no backend tells")


def _is_base(url: str) -> bool:
    with suppress(ValueError):
        one = urlsplit(url)
        named = one.scheme in {"http", "https"} and bool(one.hostname) and one.port != 0
        return named and not ("@" in one.netloc or one.query or one.fragment)
    return False


def _check_urls(config: GatewayConfig) -> None:
    """Raises ConfigError."""
    own, found = (_host(config.host), config.port), set[tuple[str, int | None, str]]()
    for url in config.urls:
        if not _is_base(url):
            raise ConfigError(f"--backend {url}: is no http:// or https:// URL of host, port and path (keys: URL=FILE)")
        one = urlsplit(url)
        address = _host(one.hostname or ""), one.port
        if config.uds is None and address == own:
            raise ConfigError(f"--backend {url} is where this gateway listens: give it another --port")
        if (base := (*address, one.path.rstrip("/").removesuffix("/v1"))) in found:
            raise ConfigError(f"--backend {url} is given twice")
        found.add(base)


def _host(name: str) -> str:
    return LOCAL[0] if name in LOCAL else name


def keys_of(config: GatewayConfig) -> list[str | None]:
    """None for the client's own. Raises ConfigError."""
    keys: list[str | None] = []
    for url, _, file in (one.partition("=") for one in config.backend):
        found = [*read_key_file(Path(file), f"--backend {url}={file}")] if file else [config.backend_api_key]
        if len(found) > 1:
            raise ConfigError(f"--backend {url}={file}: the file holds more than one key")
        keys += found
    return keys


def _parts_for(config: GatewayConfig, metrics: MetricsCollector) -> SchedulerParts:
    options = Scheduling(**{one.name: getattr(config, one.name) for one in fields(Ordering)})
    limits = Batching(group_tokens=ROOM, prefill_ahead=0, options=options, max_padding=1.0, shares=shares_of(config))
    strategy = replace(STRATEGIES[config.strategy], memory="paged")  # bounded by the backend
    parts = assemble(strategy, limits.within(ROOM, ROOM, config.slots or FIRST_SLOTS))
    if parts.placement is idle_first:
        parts = replace(parts, placement=least_unread)
    return replace(parts, estimates=replace(parts.estimates, steps=None), observers=(*parts.observers, metrics))


@asynccontextmanager
async def _open_session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECTING)
    connector, trace = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE), aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    cookies = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=cookies, trace_configs=[trace]
    ) as session:
        yield session
        await asyncio.sleep(0)


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.append(True)
