"""What OpenAI's API knows and this server cannot do: said, rather than silently left out of the answer."""

from __future__ import annotations

from server.api.errors import ApiError, bad_request
from server.api.input.foreign import refuse_foreign
from server.api.input.schema import ChatBody, CompletionBody, GenerationBody


def refuse_unsupported(body: ChatBody | CompletionBody) -> None:
    """Raise ApiError 400 for the first field that asks for what is not there."""
    _refuse_common(body)
    if isinstance(body, ChatBody):
        _refuse_chat(body)
    else:
        _refuse_completion(body)


def _refuse_common(body: GenerationBody) -> None:
    refuse_foreign(body)
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options: is allowed only when stream is true", "stream_options")


def _refuse_chat(body: ChatBody) -> None:
    if body.functions:
        raise _unsupported("functions", "are not supported; use tools")


def _refuse_completion(body: CompletionBody) -> None:
    if body.suffix:
        raise _unsupported("suffix", "is not supported; leave it out")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise _unsupported("best_of", "only the value of n is supported")


def _unsupported(param: str, message: str) -> ApiError:
    return bad_request(f"{param}: {message}", param, "unsupported")
