"""Run in an environment with `llama-index-llms-openai-like`: prints as JSON what it makes of a server's answers."""

import json

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from openai import APIStatusError, APITimeoutError
from wanted import MESSAGES, SOON, STALLED, find_statuses, tell, times_out


def weather(city: str, days: int) -> str:
    """Tells it."""
    return f"{days} days of sun in {city}"


def make(url: str, **fields: object) -> OpenAILike:
    common = {"model": "fake", "api_base": f"{url}/v1", "api_key": "none", "max_retries": 0, "context_window": 4096}
    return OpenAILike(**common | fields, is_chat_model=True, is_function_calling_model=True)


def main(url: str, crowded: str) -> dict[str, object]:
    model = make(url)
    said = [ChatMessage(**one) for one in MESSAGES]
    tools = {"tools": [FunctionTool.from_defaults(weather, name="Weather")], "chat_history": said}
    tools |= {"tool_required": True, "allow_parallel_tool_calls": True}
    whole = model.chat_with_tools(**tools)
    *_, last = model.stream_chat_with_tools(**tools)
    return {
        "tools": [json.dumps(one.tool_kwargs) for one in model.get_tool_calls_from_response(whole)],
        "streamed tools": [json.dumps(one.tool_kwargs) for one in model.get_tool_calls_from_response(last)],
        "text": model.chat(said).message.content,
        "errors": find_statuses(lambda **wrong: make(url, **wrong).chat(said), APIStatusError),
        "time-out": times_out(
            lambda: make(url, timeout=SOON).chat([ChatMessage(**one) for one in STALLED]), APITimeoutError
        ),
        "retry": make(crowded, max_retries=2).chat(said).message.content,
        "streamed text": "".join(chunk.delta or "" for chunk in model.stream_chat(said)),
    }


tell(main)
