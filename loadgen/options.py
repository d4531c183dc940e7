"""Options that several commands with a load share: access to a server, sampling, and numbers of requests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from models.options import Count, Natural, NonNegative, Positive, Share, option, split_pair


@dataclass(frozen=True, kw_only=True)
class Access:
    """The headers that let a request in."""

    header: tuple[tuple[str, str], ...] = option(
        (), "sent along with each request", parse=split_pair, nargs="*", metavar="KEY=VALUE", secret=True
    )
    api_key: str | None = option(None, "sent as a bearer token (default: $OPENAI_API_KEY)", metavar="KEY", secret=True)

    def headers(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The HTTP headers of every request."""
        key = self.api_key or environ.get("OPENAI_API_KEY")
        return ({"Authorization": f"Bearer {key}"} if key else {}) | dict(self.header)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampling parameters of every request."""

    ignore_eos: bool = option(False, "generate on to the length that was asked for")
    temperature: NonNegative = option(0.0, "0 takes the likeliest token")
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = option(None, "nucleus sampling")
    top_k: Annotated[int, Meta(ge=-1)] | None = option(None, "sample among the N likeliest tokens")
    min_p: Share | None = option(None, "least probability, as a share of the likeliest token's")
    extra_body: dict[str, Any] | None = option(None, "further fields of every request's body")

    def fields(self, ignore_eos: bool = False) -> dict[str, object]:
        """Fields of a request's body; `ignore_eos` asks for it also without the flag."""
        named = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        fields = {name: value for name, value in named.items() if value is not None}
        if self.ignore_eos or ignore_eos:
            fields["ignore_eos"] = True
        return fields | (self.extra_body or {})


@dataclass(frozen=True, kw_only=True)
class Load:
    """The number of requests, and how they are sent."""

    num_prompts: Count = option(100, "requests of a run")
    seed: Natural = option(0, "seed of prompts, arrivals and cancellations")
    max_concurrency: Count | None = option(None, "requests that may be under way at a time")
    num_warmups: Natural = option(1, "requests before, which are not measured")
    timeout: Positive = option(600.0, "give a request up when nothing came for so long", metavar="SECONDS")
