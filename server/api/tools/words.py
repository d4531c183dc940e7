"""The words of tool calls: Hermes' markup, which the templates of Qwen, Hermes and others share.

<tool_call>
{"name": "weather", "arguments": {"city": "Graz"}}
</tool_call>
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

OPEN, CLOSE = "<tool_call>", "</tool_call>"
RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"


def call_head(name: str) -> str:
    """A call up to where its arguments begin."""
    return f'{OPEN}\n{{"name": {orjson.dumps(name).decode()}, "arguments": '


CALL_TAIL = f"}}\n{CLOSE}"
"""The end of a call, behind its arguments. It cannot be part of them: in JSON no string holds a line break."""

BETWEEN = "\n"
"""The text between two calls."""


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A whole call."""
    return f"{call_head(name)}{orjson.dumps(arguments).decode()}{CALL_TAIL}"


def result_text(content: str) -> str:
    """The answer of a tool, marked up."""
    return f"{RESULT_OPEN}\n{content}\n{RESULT_CLOSE}"
