"""Messages or prompts -> token ids that fit the model; long ones off the event loop."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson
from msgspec.structs import astuple

from models.errors import TextError
from scheduler.length.features import LengthQuery
from server.api.errors import ApiError, invalid
from server.api.input.refused import refuse_foreign
from server.api.input.schema import MAX_CHOICES, ChatBody, CompletionBody, TextBody
from server.api.input.structured import NO_FORM, Form, constraint, form_of
from server.api.input.tools import NO_TOOLS, Toolbox, Turn, join_turns, plain_turns, toolbox
from server.api.input.turns import as_turn
from server.api.served_model import ServedModel
from server.lengths.instruction import InstructionSplit, split_by, split_messages

SHORT = 1024  # characters or token ids encoded on the event loop: a millisecond, less than waking a thread

FEW = 16  # turns encoded there

PLAIN = ("role", "content")  # the only fields of most messages


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens to continue, and their text where the client may want it back."""

    ids: tuple[int, ...]
    text: str = ""
    # instruction and user input, without the template's tokens, bound and scope yet
    parts: LengthQuery = LengthQuery("", "", 0, 0)
    grammar: Form | None = None  # None if unconstrained
    tools: Toolbox = NO_TOOLS


async def read_prompts(body: TextBody, model: ServedModel, scope: str | None = None) -> list[Prompt]:
    """Raises ApiError 400. `scope`: whose texts are remembered together."""
    refuse_foreign(body)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise invalid("best_of", "only the value of n is supported", "unsupported")
    if isinstance(body, CompletionBody):
        return await _completion_prompts(body, model)
    asks_tools = bool(body.tools) or body.tool_choice is not None
    tools = await model.run_in_thread(toolbox, body, closed=model.settings.close_schemas) if asks_tools else NO_TOOLS
    grammar = await constraint(body, model, tools) if tools.must_call or form_of(body) != NO_FORM else None
    turns = body.messages
    is_short = (  # long conversations are not even measured on the event loop
        not (asks_tools or body.chat_template_kwargs)
        and len(turns) <= FEW
        and all(isinstance(turn.content, str) and not any(astuple(turn)[len(PLAIN) :]) for turn in turns)
        and len(body.instruction or "") + sum(len(turn.content or "") for turn in turns) <= SHORT
    )
    if is_short:
        return [_converse(body, model, tools, grammar, scope)]
    return [await model.run_in_thread(_converse, body, model, tools, grammar, scope)]


def encode(text: str, path: str, model: ServedModel, *, add_special_tokens: bool = True) -> list[int]:
    """Raises ApiError 400 for text that the tokenizer cannot encode."""
    try:
        return model.text.encode(text, add_special_tokens=add_special_tokens)
    except TextError as error:
        raise invalid(path, str(error)) from None


def _converse(body: ChatBody, model: ServedModel, tools: Toolbox, grammar: Form | None, scope: str | None) -> Prompt:
    turns, ids, *texts = render_chat(body, model, tools, scope)
    return _prompt(Prompt(tuple(ids), grammar=grammar, tools=tools), turns, texts, body, "messages", model)


def _prompt(
    prompt: Prompt, turns: Sequence[Turn], texts: Sequence[slice], body: TextBody, path: str, model: ServedModel
) -> Prompt:
    """`texts` marks tokens of the instruction and the other turns."""
    ids = prompt.ids
    if not ids:
        raise invalid(path, "must not be empty")
    if len(ids) >= model.context_length:
        raise too_long(path, f"{len(ids)} tokens", model)
    if body.instruction is not None:
        split = split_by(body.instruction, [turn["content"] for turn in turns])
    else:
        split = split_messages(turns, InstructionSplit(body.instruction_split or model.defaults.instruction_split))
    system, others = (ids[place] for place in texts)
    is_apart = body.instruction is None and (system or not split.instruction)
    length = len(others if is_apart else encode(split.user_input, path, model))
    return replace(prompt, parts=LengthQuery(split.instruction, split.user_input, length, 0, system + others))


def render_chat(
    body: ChatBody, model: ServedModel, tools: Toolbox = NO_TOOLS, scope: str | None = None
) -> tuple[list[Turn], list[int], slice, slice]:
    """Turns for the template, their token ids, and which of these are text. Raises ApiError 400. Heavy."""
    names = dict[str, str]()  # call id -> function
    turns = [as_turn(one, f"messages[{at}]", names, model.text.takes_tools) for at, one in enumerate(body.messages)]
    goes_on = bool(body.continue_final_message)
    if goes_on and turns[-1]["role"] != "assistant":
        raise invalid("continue_final_message", "the last message must be the assistant's")
    if goes_on and body.add_generation_prompt:
        raise invalid("continue_final_message", "cannot go with add_generation_prompt; give one of them")
    offered = [tool.definition for tool in tools.offered]
    if offered:
        check_bytes(len(orjson.dumps(offered)), "tools", model)
    uses = offered or any(turn["role"] == "tool" or turn.get("tool_calls") for turn in turns)
    if uses and not model.text.takes_tools:
        turns, offered = plain_turns(turns, tools), []
    check_bytes(sum(len(turn["content"].encode()) for turn in turns), "messages", model)
    options: dict[str, Any] = {
        "tools": offered,
        "add_generation_prompt": body.add_generation_prompt is not False and not goes_on,
        "continue_final_message": goes_on,
        "variables": body.chat_template_kwargs or {},
        "scope": scope,
    }
    try:
        return turns, *model.text.encode_turns(turns, **options)
    except TextError as error:
        refusal = error
    for system in (True, False) if not isinstance(refusal.__cause__, TimeoutError) else ():
        joined = join_turns(turns, system=system)
        with suppress(TextError):
            return joined, *model.text.encode_turns(joined, **options)
    raise invalid("messages", str(refusal))


async def _completion_prompts(body: CompletionBody, model: ServedModel) -> list[Prompt]:
    grammar = await constraint(body, model) if form_of(body) != NO_FORM else None
    is_one = isinstance(body.prompt, str) or all(isinstance(token, int) for token in body.prompt[: SHORT + 1])
    if is_one and len(body.prompt) + len(body.instruction or "") <= SHORT:
        return _complete(body, model, grammar)
    return await model.run_in_thread(_complete, body, model, grammar)


def _complete(body: CompletionBody, model: ServedModel, grammar: Form | None) -> list[Prompt]:
    written = separate(body.prompt, "prompt", MAX_CHOICES)
    placed = {"prompt": written[0]} if len(written) == 1 else {f"prompt[{at}]": one for at, one in enumerate(written)}
    # Check all before encoding any.
    for path, item in placed.items():
        check_written(item, path, model)
    prompts = []
    for path, item in placed.items():
        text = item if isinstance(item, str) else model.text.decode(item)
        ids = tuple(encode(item, path, model) if isinstance(item, str) else item)
        turns = [{"role": "user", "content": text}]
        prompts.append(_prompt(Prompt(ids, text, grammar=grammar), turns, (slice(0), slice(None)), body, path, model))
    return prompts


WrittenPrompt = str | list[int]


def separate(given: str | list[str | int | list[int]], name: str, most: int) -> Sequence[WrittenPrompt]:
    """One prompt for a string or list of ids, up to `most` for a list of these. Raises ApiError 400."""
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    if ids and len(ids) == len(given):
        return [ids]
    several = [item for item in given if not isinstance(item, int)]
    if len({type(item) for item in given}) != 1:
        raise invalid(name, "must be a string, token ids, or a list of one of these kinds; it may not be empty")
    if len(several) > most:
        raise invalid(name, f"at most {most} {name}s fit one request")
    return several


def check_written(prompt: WrittenPrompt, path: str, model: ServedModel) -> None:
    """Raises ApiError 400 for an empty prompt, an unknown id, or one that cannot fit."""
    if not prompt:
        raise invalid(path, "must not be empty")
    if isinstance(prompt, str):
        check_bytes(len(prompt.encode()), path, model)
        return
    if len(prompt) >= model.context_length:
        raise too_long(path, f"{len(prompt)} tokens", model)
    check_ids(prompt, path, model)


def check_ids(ids: Sequence[int], path: str, model: ServedModel) -> None:
    """Raises ApiError 400 for unknown ids."""
    if ids and not 0 <= min(ids) <= max(ids) < model.vocab_size:
        raise invalid(path, f"token ids go from 0 to {model.vocab_size - 1}")


def check_bytes(count: int, path: str, model: ServedModel) -> None:
    """Refuse what cannot fit however it is tokenized."""
    longest = model.text.longest_token
    if longest is not None and count > model.context_length * longest:
        raise too_long(path, f"{count} bytes", model)


def too_long(path: str, length: str, model: ServedModel) -> ApiError:
    holds = f"the context holds {model.context_length} tokens, one of them for the answer at least"
    return invalid(path, f"has {length}, but {holds}; shorten it", "context_length_exceeded")
