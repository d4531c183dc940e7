"""A response's header with the server's load, for routers that ask for it: ORCA (Open Request Cost Aggregation).

As Envoy, Triton and vLLM have it: the request's header `endpoint-load-metrics-format: text` or `json` asks for it, and
named metrics of vLLM's have vLLM's names.
"""

from __future__ import annotations

import orjson
from aiohttp import web

from scheduler.dispatcher import Dispatcher
from server.api.generator import DISPATCHER
from server.api.operation import generates

FORMAT = "endpoint-load-metrics-format"
LOAD = "endpoint-load-metrics"


def load_metrics(dispatcher: Dispatcher) -> dict[str, float]:
    """Load by name; what is not measured yet is left out."""
    known = {
        "kv_cache_usage_perc": dispatcher.kv_usage,
        "num_requests_waiting": float(dispatcher.requests_waiting),
        "num_requests_running": float(dispatcher.requests_running),
        "predicted_work_seconds": dispatcher.load().work,
        "eta_seconds": dispatcher.newcomer_wait(),
    }
    return {name: round(value, 4) for name, value in known.items() if value is not None}


def add_load(request: web.Request, response: web.StreamResponse) -> None:
    """Add the load to the response of a call that generates, where it asks in a format that there is."""
    wanted = request.headers.get(FORMAT, "").lower()
    if wanted not in ("text", "json") or not generates(request):
        return
    metrics = load_metrics(request.app[DISPATCHER])
    if wanted == "json":
        response.headers[LOAD] = f"JSON {orjson.dumps({'named_metrics': metrics}).decode()}"
    else:
        response.headers[LOAD] = "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
