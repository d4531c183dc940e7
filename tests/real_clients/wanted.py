"""What every client asks: beside the programs that import it, which run where nothing else of this repository is."""

from __future__ import annotations

MESSAGES = [{"role": "user", "content": "What is the weather in Graz?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOL = {"type": "function", "function": {"name": "Weather", "description": "Tells it.", "parameters": CITY}}
