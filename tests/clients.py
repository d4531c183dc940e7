"""What the official client can ask a live server besides the API that it is made for."""

from __future__ import annotations

from openai import AsyncOpenAI


async def running(client: AsyncOpenAI) -> int:
    """Requests that an executor holds."""
    health = await client.get("../health/ready", cast_to=dict[str, int])
    return health["requests_running"]
