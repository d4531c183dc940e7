"""Latency objectives in the headers of a call, as inference gateways send them: of the first token and the others."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from server.api.errors import bad_request

FIRST_TOKEN = ("x-slo-ttft-ms", "x-llm-d-slo-ttft-ms")
PER_TOKEN = ("x-slo-tpot-ms", "x-llm-d-slo-tpot-ms")
LONGEST_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Objectives:
    """Seconds that a client allows; None for any."""

    first_token: float | None = None
    """Seconds from the arrival to the first token."""
    per_token: float | None = None
    """Seconds from one token to the next."""


def read_objectives(request: web.Request) -> Objectives:
    """The objectives that a call's headers name; raises ApiError 400."""
    return Objectives(_seconds(request, FIRST_TOKEN), _seconds(request, PER_TOKEN))


def _seconds(request: web.Request, headers: tuple[str, ...]) -> float | None:
    name = next((header for header in headers if header in request.headers), None)
    if name is None:
        return None
    text = request.headers[name].strip()
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LONGEST_MS:
        raise bad_request(f"{name}: must be milliseconds above 0 and at most {LONGEST_MS}, not {text[:200]!r}", name)
    return value / 1000
