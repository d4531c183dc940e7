"""Messages or prompts of a request -> token ids that fit the model, and what lengths are predicted from, made off the
event loop where they are not short.

It refuses what cannot be read (other media, unknown tokens, text that the tokenizer cannot encode) and what cannot fit,
before any memory is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import orjson

from engine.sampling.grammar import Compiled
from models.errors import TextError
from server.api.errors import ApiError, bad_request
from server.api.input.fields import refuse_foreign
from server.api.input.schema import MAX_CHOICES, ChatBody, CompletionBody, ContentPart, Message
from server.api.input.structured import constraint
from server.api.input.tools import NO_TOOLS, Toolbox, Turn, plain_turns, tool_fields, toolbox
from server.api.served_model import ServedModel
from server.lengths.instruction import InstructionSplit, SplitPrompt, split_by, split_messages, split_text

if TYPE_CHECKING:
    from models.text import Text

SHORT = 1024
"""Characters of a prompt, or its token ids, up to which it is encoded on the event loop: that takes a millisecond, and
waking a thread takes longer beside executors that compute on all cores."""

FEW = 16
"""Turns of a conversation that is encoded there."""


PLAIN = ("role", "content")
"""Fields of a turn that neither calls tools nor brings their results."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens that the model is to continue, and their text where the client may want it back."""

    ids: tuple[int, ...]
    text: str = ""
    split: SplitPrompt = SplitPrompt("", "")
    """The prompt's two parts: the application's instruction, and the user's own input."""
    text_ids: tuple[int, ...] = ()
    """Tokens of both, without the chat template."""
    user_input_length: int = 0
    """UIL: tokens of the user input."""
    grammar: Compiled | None = None
    """The grammar of the answer; None where it may be anything."""
    tools: Toolbox = NO_TOOLS
    """Tools that the answer may call."""


async def chat_prompt(body: ChatBody, model: ServedModel) -> Prompt:
    """The conversation through the model's chat template; raises ApiError 400."""
    refuse_foreign(body)
    asks_tools = bool(body.tools) or body.tool_choice is not None
    tools = await model.run_in_thread(toolbox, body, closed=model.defaults.close_schemas) if asks_tools else NO_TOOLS
    grammar = await constraint(body, model, tools)
    if not asks_tools and _is_short(body):
        return _converse(body, model, tools, grammar)
    return await model.run_in_thread(_converse, body, model, tools, grammar)


def _is_short(body: ChatBody) -> bool:
    """Whether all that becomes text is short: the contents of few turns, without calls of tools, their results, and
    variables of the template."""
    turns = [one for one in body.messages[:FEW] if not (one.tool_calls or one.tool_call_id)]
    plain = [one.content for one in turns if isinstance(one.content, str)]
    return (
        len(plain) == len(body.messages)
        and sum(map(len, plain)) + len(body.instruction or "") <= SHORT
        and not body.chat_template_kwargs
    )


def _converse(body: ChatBody, model: ServedModel, tools: Toolbox, grammar: Compiled | None) -> Prompt:
    turns, ids = render_chat(body, model, tools)
    if body.instruction is not None:
        split = split_by(body.instruction, [turn["content"] for turn in turns])
    else:
        split = split_messages(turns, InstructionSplit(body.instruction_split or model.defaults.instruction_split))
    with refuse_unencodable("messages"):
        text_ids, user_input_length = _encode_split(split, model.text)
    prompt = Prompt(tuple(ids), "", split, text_ids, user_input_length, grammar, tools)
    return _require_fit(prompt, "messages", model)


def _encode_split(split: SplitPrompt, text: Text) -> tuple[tuple[int, ...], int]:
    """The tokens of instruction and user input, and how many of them are the latter's."""
    user_input = text.encode(split.user_input)
    return (*(text.encode(split.instruction) if split.instruction else ()), *user_input), len(user_input)


def render_chat(body: ChatBody, model: ServedModel, tools: Toolbox = NO_TOOLS) -> tuple[list[Turn], list[int]]:
    """The turns as chat templates know them, and their token ids; raises ApiError 400. Heavy."""
    turns = [_turn(message, f"messages[{place}]") for place, message in enumerate(body.messages)]
    if goes_on := bool(body.continue_final_message):
        _check_goes_on(turns, body.add_generation_prompt)
    offered = [tool.definition for tool in tools.offered]
    if offered:
        check_bytes(len(orjson.dumps(offered)), "tools", model)
    if not model.text.takes_tools and (offered or any(len(turn) > len(PLAIN) for turn in turns)):
        turns, offered = plain_turns(turns, tools), []
    check_bytes(sum(len(turn["content"].encode()) for turn in turns), "messages", model)
    with refuse_unencodable("messages"):
        ids = model.text.encode_chat(
            turns,
            tools=offered,
            add_generation_prompt=body.add_generation_prompt is not False and not goes_on,
            continue_final_message=goes_on,
            variables=body.chat_template_kwargs or {},
        )
    return turns, ids


def _check_goes_on(turns: Sequence[Turn], add_generation_prompt: bool | None) -> None:
    """Raise ApiError 400 where no answer can go on with the last turn."""
    fault = "cannot go with add_generation_prompt; give one of them" if add_generation_prompt else None
    if turns[-1]["role"] != "assistant":
        fault = "the last message must be the assistant's"
    if fault is not None:
        raise bad_request(f"continue_final_message: {fault}", "continue_final_message")


@contextmanager
def refuse_unencodable(param: str) -> Iterator[None]:
    """Word what the model's tokenizer or chat template refuses as the client's error: ApiError 400 about `param`."""
    try:
        yield
    except TextError as error:
        raise bad_request(f"{param}: {error}", param) from None


def _turn(message: Message, path: str) -> Turn:
    """A message as chat templates know it: they have no developer, which is OpenAI's newer word for system."""
    role, content = "system" if message.role == "developer" else message.role, message.content
    if not isinstance(content, str):
        silent = content is None and role == "assistant"
        content = "" if silent else join_content(content, f"{path}.content", ("text",))
    turn = {"role": role, "content": content}
    return turn if role != "tool" and not message.tool_calls else turn | tool_fields(message, path)


def join_content(content: str | Sequence[ContentPart] | None, path: str, types: Sequence[str]) -> str:
    """The text of a message whose parts must be of one of `types`; raises ApiError 400."""
    param = path.partition("[")[0]
    if content is None:
        raise bad_request(f"{path}: must be a string or a list of text parts", param)
    if isinstance(content, str):
        return content
    for place, part in enumerate(content):
        if part.type not in types:
            raise bad_request(f"{path}[{place}]: only parts of type {types[0]!r} are supported", param, "unsupported")
        if part.text is None:
            raise bad_request(f"{path}[{place}].text: is missing", param)
    return "".join(part.text or "" for part in content)


async def completion_prompts(body: CompletionBody, model: ServedModel) -> list[Prompt]:
    """The prompts of a completion, each by itself; raises ApiError 400."""
    refuse_foreign(body)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_request("best_of: only the value of n is supported", "best_of", "unsupported")
    grammar = await constraint(body, model)
    is_one = isinstance(body.prompt, str) or all(isinstance(token, int) for token in body.prompt[: SHORT + 1])
    is_short = is_one and len(body.prompt) + len(body.instruction or "") <= SHORT
    if is_short:
        return _complete(body, model, grammar)
    return await model.run_in_thread(_complete, body, model, grammar)


def _complete(body: CompletionBody, model: ServedModel, grammar: Compiled | None) -> list[Prompt]:
    written = separate(body.prompt, "prompt", MAX_CHOICES)
    # All are checked before the first is encoded: the last may be the one that is refused.
    for place, item in enumerate(written):
        check_written(item, "prompt" if len(written) == 1 else f"prompt[{place}]", model)
    with refuse_unencodable("prompt"):
        return [_completion_prompt(item, body, model, grammar) for item in written]


def _completion_prompt(
    written: WrittenPrompt, body: CompletionBody, model: ServedModel, grammar: Compiled | None
) -> Prompt:
    text = written if isinstance(written, str) else model.text.decode(written)
    ids = tuple(model.text.encode(written) if isinstance(written, str) else written)
    if body.instruction is not None:
        split = split_by(body.instruction, [text])
    else:
        split = split_text(text, InstructionSplit(body.instruction_split or model.defaults.instruction_split))
    text_ids, user_input_length = _encode_split(split, model.text) if split.instruction else (ids, len(ids))
    return _require_fit(Prompt(ids, text, split, text_ids, user_input_length, grammar), "prompt", model)


def _require_fit(prompt: Prompt, path: str, model: ServedModel) -> Prompt:
    if not prompt.ids:
        raise bad_request(f"{path}: must not be empty", path)
    if len(prompt.ids) >= model.context_length:
        raise too_long(path, f"{len(prompt.ids)} tokens", model)
    return prompt


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
