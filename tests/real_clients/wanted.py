"""The calls that every client makes; beside the programs that import it, which run without the rest of the tree."""

from __future__ import annotations

MESSAGES = [{"role": "user", "content": "What is the weather in Graz?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOL = {"type": "function", "function": {"name": "Weather", "description": "Tells it.", "parameters": CITY}}
