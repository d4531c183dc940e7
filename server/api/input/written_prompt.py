"""Prompts as clients write them, texts or token ids: taken apart, and refused where they cannot fit the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from server.api.errors import ApiError, bad_request
from server.api.served_model import ServedModel

WrittenPrompt: TypeAlias = str | list[int]


def separate(given: str | list[str | int | list[int]], name: str, most: int) -> Sequence[WrittenPrompt]:
    """The texts of the field `name`: a string and a list of token ids are one, lists of either are several, of which
    there may be `most`. Raises ApiError 400."""
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    if ids and len(ids) == len(given):
        return [ids]
    several = [item for item in given if not isinstance(item, int)]
    if len({type(item) for item in given}) != 1:
        message = f"{name}: must be a string, token ids, or a list of one of these kinds; it may not be empty"
        raise bad_request(message, name)
    if len(several) > most:
        raise bad_request(f"{name}: at most {most} {name}s fit one request", name)
    return several


def check_written(prompt: WrittenPrompt, path: str, model: ServedModel) -> None:
    """Raise ApiError 400 for a prompt that is empty, has ids of no token, or cannot fit however it is encoded."""
    if not prompt:
        raise bad_request(f"{path}: must not be empty", "prompt")
    if isinstance(prompt, str):
        check_bytes(len(prompt.encode()), path, model)
        return
    if len(prompt) >= model.context_length:
        raise too_long(path, f"{len(prompt)} tokens", model)
    check_ids(prompt, path, model)


def check_ids(ids: Sequence[int], path: str, model: ServedModel) -> None:
    """Refuse what is no token, in a list that may be empty."""
    if ids and not 0 <= min(ids) <= max(ids) < model.vocab_size:
        raise bad_request(f"{path}: token ids go from 0 to {model.vocab_size - 1}", path.split("[")[0])


def check_bytes(count: int, path: str, model: ServedModel) -> None:
    """Refuse what cannot fit however it is split into tokens: splitting it would cost time for nothing."""
    longest = model.text.longest_token
    if longest is not None and count > model.context_length * longest:
        raise too_long(path, f"{count} bytes", model)


def too_long(path: str, length: str, model: ServedModel) -> ApiError:
    """The prompt leaves no room for an answer."""
    message = (
        f"{path}: has {length}, but the context holds {model.context_length} tokens, "
        "one of them for the answer at least; shorten it"
    )
    return bad_request(message, path.split("[")[0], "context_length_exceeded")
