"""Whether an event carries content: some backends send others before a call has a
slot.
"""

from typing import Any

import orjson

EMPTY = frozenset({"message_start", "content_block_start", "ping", "keepalive"})
BEFORE = (".created", ".queued", ".in_progress", ".added")  # ends of types


def brings(line: bytes) -> bool:
    """Text, reasoning, arguments or an end."""
    if not line.startswith(b"data:") or not (data := line[5:].strip()):
        return False
    try:
        event = orjson.loads(data)
    except ValueError:  # such as [DONE]
        return True
    match event:
        case {"error": error} if error:
            return True
        case {"type": str(), "delta": _}:
            return _has_content(event)
        case {"type": str(kind)}:
            return kind not in EMPTY and not kind.endswith(BEFORE)
        case {"choices": list(choices)}:
            return any(map(_has_content, choices))
    return not isinstance(event, dict)


def _has_content(choice: Any) -> bool:
    match choice:
        case {"finish_reason": reason} if reason:
            return True
        case {"text": str(text)} | {"delta": str(text)}:
            return bool(text)
        case {"delta": dict(delta)}:
            return any(value for name, value in delta.items() if name not in ("role", "type"))
    return False
