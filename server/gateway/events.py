"""Whether an event of OpenAI's or Anthropic's streams carries content: some backends send others before a call has a
slot.
"""

from typing import Any

import orjson

EMPTY = frozenset(
    {
        *("response.created", "response.queued", "response.in_progress", "response.output_item.added"),
        *("response.content_part.added", "response.reasoning_summary_part.added"),
        *("message_start", "content_block_start", "ping", "keepalive"),
    }
)


def brings(line: bytes) -> bool:
    """Text, reasoning, arguments or an end."""
    if not line.startswith(b"data:"):
        return False
    try:
        event = orjson.loads(line[5:])
    except ValueError:  # such as [DONE]
        return True
    match event:
        case {"type": str(kind)}:
            return kind not in EMPTY
        case {"choices": list(choices)} if not event.get("error"):
            return any(map(_has_content, choices))
    return True


def _has_content(choice: Any) -> bool:
    match choice:
        case {"finish_reason": reason} if reason:
            return True
        case {"text": text}:
            return bool(text)
        case {"delta": dict(delta)}:
            return any(value for name, value in delta.items() if name != "role")
    return False
