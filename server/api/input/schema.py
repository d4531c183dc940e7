"""Bodies of generation requests, every field bounded, null the default, unknown fields ignored; checks across fields
are in input/sampling.py and prompts.py.
"""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from models.network.generation_config import MinP, RepetitionPenalty, Temperature, TokenCount, TopK, TopP
from scheduler.wait_estimate.expected_wait import FARTHEST
from server.api.input.refused import ABSENT, Foreign

MAX_CHOICES = 256  # `n` times the prompts
MOST_ANSWERS = 64  # to a prompt

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Alternatives = Annotated[int, Meta(ge=0, le=20)]
TokenIds = Annotated[list[TokenId], Meta(max_length=2**20)]
Texts = Annotated[str, Meta(min_length=1)] | Annotated[list[str | int | TokenIds], Meta(min_length=1, max_length=2**20)]
StopString = Annotated[str, Meta(min_length=1, max_length=256)]
StopStrings = Annotated[list[StopString], Meta(max_length=256)]
FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,128}$")]
ModelName = Annotated[str, Meta(max_length=1024)]
GrammarText = Annotated[str, Meta(min_length=1, max_length=65536)]
ChoiceText = Annotated[str, Meta(min_length=1, max_length=4096)]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Deadline = Annotated[float, Meta(gt=0, le=86_400_000)]
TemplateVariables = Annotated[dict[str, str | int | float | bool | None], Meta(max_length=64)]


def told(**schema: object) -> Meta:
    """Documents a handler's own check in the JSON schema."""
    return Meta(extra_json_schema=schema)


def one_kind(most: int) -> Meta:
    """A text or token ids, or up to `most` of either."""
    kinds: list[dict[str, object]] = [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}]
    several = [{"items": kind, "maxItems": most} for kind in kinds]
    return told(allOf=[{"anyOf": [{"type": "string"}, {"items": {"type": "integer", "minimum": 0}}, *several]}])


TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")

TOKEN_NAMES = told(propertyNames={"pattern": "^[0-9]{1,9}$"})


def _turn(*roles: str, **must: dict[str, object]) -> dict[str, object]:
    given = {"role": {"enum": [*roles]}, **must, "tool_calls": {"enum": [None, []]}}
    return {"properties": given, "required": [*must]}


SPOKEN = {"properties": {"type": {"enum": [*TEXTS]}, "text": {"type": "string"}}, "required": ["text"]}

ROLES = told(
    anyOf=[
        {"properties": {"role": {"const": "assistant"}}},
        _turn("function"),
        _turn("system", "developer", "user", content={"type": ["string", "array"], "items": SPOKEN}),
        _turn("tool", tool_call_id={"type": "string", "minLength": 1}),
    ]
)


class StreamOptions(msgspec.Struct, frozen=True):
    """Whether a stream has token counts: in one chunk before its end, or in every chunk. And
    whether comments report its place in line while it waits.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_progress: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True):
    """The schema that a JSON answer must match."""

    schema: msgspec.Raw = ABSENT
    name: Annotated[str, Meta(max_length=256)] | None = None
    description: str | None = None
    strict: bool | None = None  # false: ignore what cannot be enforced


class ResponseFormat(msgspec.Struct, frozen=True):
    """The form that the text of an answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: msgspec.Raw = ABSENT  # llama.cpp, Fireworks, Together


class StructuredOutputs(msgspec.Struct, frozen=True):
    """The form of an answer in vLLM's words: one of these fields."""

    json: msgspec.Raw = ABSENT
    regex: GrammarText | None = None
    choice: Annotated[list[ChoiceText], Meta(min_length=1, max_length=1024)] | None = None
    grammar: GrammarText | None = None  # Lark, with a rule `start`
    json_object: bool | None = None
    structural_tag: msgspec.Raw = ABSENT  # vLLM, both refused
    whitespace_pattern: msgspec.Raw = ABSENT


class OtherWords(Foreign, frozen=True, kw_only=True):
    """Other servers' fields for what `structured_outputs` asks for here."""

    format: msgspec.Raw = ABSENT  # Ollama: "json", or a schema
    grammar: msgspec.Raw = ABSENT  # TGI, mistral.rs: type and value; llama.cpp, KoboldCpp: GBNF (refused)
    guided_choice: msgspec.Raw = ABSENT  # vLLM before structured_outputs, Aphrodite
    guided_json: msgspec.Raw = ABSENT
    guided_json_object: msgspec.Raw = ABSENT
    guided_regex: msgspec.Raw = ABSENT
    json_object: msgspec.Raw = ABSENT
    json_schema: msgspec.Raw = ABSENT  # llama.cpp, SGLang, TabbyAPI
    nvext: msgspec.Raw = ABSENT  # NVIDIA NIM and Dynamo; guided_ fields in it are refused
    regex: msgspec.Raw = ABSENT  # SGLang
    regex_pattern: msgspec.Raw = ABSENT  # TabbyAPI


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When an answer must be there: refused where that cannot be promised, with the share of promises kept."""

    by: Annotated[datetime, Meta(tz=True)] | None = None
    within_ms: Annotated[float, Meta(gt=0, le=int(FARTHEST) * 1000)] | None = None  # milliseconds after arrival
    coverage: Annotated[float, Meta(ge=0.5, le=0.99)] | None = None


class GenerationBody(OtherWords, frozen=True, kw_only=True):
    """Fields of OpenAI's endpoints that generate."""

    model: ModelName | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_ANSWERS)] | None = None
    stop: StopString | StopStrings | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=256)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1024), TOKEN_NAMES] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Alternatives | None = None
    priority: Priority | None = None
    deadline_ms: Deadline | None = None  # milliseconds after arrival, a day at most
    promise: Promise | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None  # separates cached prompts
    user: Annotated[str, Meta(max_length=65536)] | None = None  # client, where neither API key nor header names one
    replay_tokens: TokenCount | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    instruction: Annotated[str, Meta(max_length=65536)] | None = None
    instruction_split: Literal["system", "first-line", "blank-line"] | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """A piece of a message. Only text can be read; what else earlier answers and results of tools hold is left out."""

    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | Annotated[list[ContentPart], Meta(max_length=2048)]


class PastFunction(msgspec.Struct, frozen=True):
    """A function that was called; its arguments are any text, or an object as it stands. A custom tool has an input."""

    name: str | None
    arguments: msgspec.Raw = ABSENT
    input: str | None = None


class PastCall(msgspec.Struct, frozen=True):
    """A call in an earlier turn of the assistant."""

    function: PastFunction | None = None
    id: str | None = None
    type: str | None = None
    custom: PastFunction | None = None


Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation; `function` and `function_call` are older words for tools."""

    role: Role
    content: Content | None = None
    tool_calls: Annotated[list[PastCall], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: PastFunction | None = None


Messages = Annotated[list[Annotated[Message, ROLES]], Meta(min_length=1, max_length=2048)]


class FunctionTool(msgspec.Struct, frozen=True):
    """A function that may be called."""

    name: FunctionName
    description: str | None = None
    parameters: msgspec.Raw = ABSENT  # JSON schema; none without
    strict: bool | None = None


class ChatTool(msgspec.Struct, frozen=True):
    """A tool; they are all functions."""

    type: Literal["function"]
    function: FunctionTool


class NamedFunction(msgspec.Struct, frozen=True):
    """The function that must be called."""

    name: str


class AllowedTool(msgspec.Struct, frozen=True):
    """A tool that may be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct, frozen=True):
    """Some tools, one of which may or must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=128)]


class NamedTool(msgspec.Struct, frozen=True):
    """The tool that must be called, or some, one of which may or must be."""

    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None
    type: Literal["function", "allowed_tools"] = "function"


BestOf = Annotated[int, Meta(ge=1, le=MOST_ANSWERS)]


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None  # continue the last message, the assistant's
    tools: Annotated[list[ChatTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    best_of: BestOf | None = None


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: Annotated[Texts, one_kind(MAX_CHOICES)]
    echo: bool | None = None
    logprobs: Alternatives | None = None
    best_of: BestOf | None = None


TextBody = ChatBody | CompletionBody  # what other APIs' bodies become
