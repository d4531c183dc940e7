"""Calls of the official client to a live server besides the API that it is made for."""

from openai import AsyncOpenAI


async def under_way(client: AsyncOpenAI) -> int:
    """Requests that wait or run."""
    health = await client.get("../health", cast_to=dict[str, int])
    return health["requests_waiting"] + health["requests_running"]
