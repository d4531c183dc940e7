"""Fields that bind the text of an answer, and the complaints about them."""

import asyncio
import socket
from contextlib import closing
from threading import Event
from typing import Any, cast
from unittest.mock import Mock

import aiohttp
import orjson
import pytest

from engine.sampling.grammar import Grammars
from engine.sampling.params import Grammar, GrammarKind
from server.grammars import GrammarCompiler, Outcome, Trial, TrialsFailed
from server.process.life import listen
from tests.server.api.tools.test_offered import allow, choosing
from tests.server.api.tools.test_tools import tool
from tests.server.fakes import END, FakeText, InThread, fake_service, played_dispatcher
from tests.server.live import CHAT, COMPLETIONS, MESSAGES, Live, changed, chat_body, live_server

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOL = tool(name="weather", parameters=PERSON)
CONTEXT = 4096  # the words about tools fit into it


def form(schema: object, **others: object) -> dict[str, object]:
    given = {"name": "person", "schema": schema, **others}
    return {"response_format": {"type": "json_schema", "json_schema": given}}


def only(**constraint: object) -> dict[str, object]:
    return {"structured_outputs": constraint}


def body_of(path: str, **fields: object) -> dict[str, object]:
    body = {"prompt": "Hi"} if path == COMPLETIONS else chat_body(max_tokens=9)
    return {**body, **fields}


def asked(live: Live) -> Grammar | None:
    return live.dispatcher.submitted[-1].sampling.grammar


WRITTEN = orjson.dumps(PERSON).decode()
CLOSED = orjson.dumps(PERSON | {"additionalProperties": False}).decode()
JSON = Grammar(GrammarKind.JSON_SCHEMA, WRITTEN)
LENIENT = Grammar(GrammarKind.JSON_SCHEMA, WRITTEN, True)
ANY = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
WORDS = Grammar(GrammarKind.REGEX, "yes|no")
CHOICE = Grammar(GrammarKind.LARK, 'start: "yes" | "no"')
YES = Grammar(GrammarKind.LARK, 'start: "yes"')
A = Grammar(GrammarKind.REGEX, "a")


BOTH = [
    ({}, None),
    ({"response_format": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, ANY),
    (form(PERSON), LENIENT),
    (form(PERSON, strict=True), Grammar(GrammarKind.JSON_SCHEMA, CLOSED)),
    (form(PERSON, strict=False), LENIENT),
    (only(json=PERSON), JSON),
    (only(json=WRITTEN), JSON),
    (only(json_object=True), ANY),
    (only(regex="yes|no"), WORDS),
    (only(choice=["a", 'b"\n']), Grammar(GrammarKind.LARK, r'start: "a" | "b\"\n"')),
    (only(grammar='start: "yes"'), YES),
    (only(regex="a", json=None, json_object=False), A),
    # what constrains nothing by itself
    ({"guided_decoding_backend": "outlines"}, None),
    ({"nvext": {"ignore_eos": True}}, None),
    ({"regex": "", "ebnf": "", "guided_choice": []}, None),
]


@pytest.mark.parametrize(("fields", "grammar"), BOTH)
async def test_both_endpoints_ask_for_the_same(live: Live, fields: dict[str, object], grammar: Grammar | None) -> None:
    await live.chat(**fields)
    assert asked(live) == grammar
    await live.complete(prompt="Hi", **fields)
    assert asked(live) == grammar


REFUSED = "structured_outputs"

OTHERS: list[tuple[str, str, object, Grammar | str]] = [
    # (server, field, value, grammar or what the refusal names)
    ("llama.cpp, Fireworks, Together", "response_format", {"type": "json_object", "schema": PERSON}, LENIENT),
    ("llama.cpp", "response_format", {"type": "json_schema", "schema": PERSON}, LENIENT),
    ("llama.cpp", "json_schema", PERSON, JSON),
    ("llama.cpp, KoboldCpp", "grammar", 'root ::= "yes"', REFUSED),
    ("SGLang", "json_schema", WRITTEN, JSON),
    ("SGLang", "regex", "yes|no", WORDS),
    ("SGLang", "ebnf", 'root ::= "yes"', REFUSED),
    ("SGLang, vLLM", "structural_tag", '{"structures": []}', "tools"),
    ("SGLang, vLLM", "response_format", {"type": "structural_tag", "structures": []}, "structural_tag"),
    ("vLLM to 0.11, Aphrodite", "guided_json", PERSON, JSON),
    ("vLLM to 0.11, Aphrodite", "guided_json", WRITTEN, JSON),
    ("vLLM to 0.11, Aphrodite", "guided_regex", "yes|no", WORDS),
    ("vLLM to 0.11, Aphrodite", "guided_choice", ["yes", "no"], CHOICE),
    ("vLLM to 0.11, Aphrodite", "guided_grammar", 'root ::= "yes"', REFUSED),
    ("vLLM to 0.11", "guided_whitespace_pattern", " ?", REFUSED),
    ("vLLM to 0.11", "guided_json_object", True, ANY),
    ("vLLM", "json_object", True, ANY),
    ("TGI", "grammar", {"type": "json", "value": PERSON}, JSON),
    ("TGI, mistral.rs", "grammar", {"type": "json_schema", "value": PERSON}, JSON),
    ("TGI, mistral.rs", "grammar", {"type": "regex", "value": "yes|no"}, WORDS),
    ("TGI", "response_format", {"type": "regex", "value": "yes|no"}, "regex"),
    ("mistral.rs", "grammar", {"type": "lark", "value": 'start: "yes"'}, YES),
    ("mistral.rs", "grammar", {"type": "llguidance", "value": {}}, REFUSED),
    ("Ollama", "format", "json", ANY),
    ("Ollama", "format", PERSON, JSON),
    ("NVIDIA NIM, Dynamo", "nvext", {"guided_json": PERSON}, REFUSED),
    ("Cohere", "response_format", {"type": "json_object", "json_schema": PERSON}, "is missing"),
    ("TabbyAPI", "regex_pattern", "yes|no", WORDS),
    ("TabbyAPI, text-generation-webui", "grammar_string", 'root ::= "yes"', REFUSED),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
@pytest.mark.parametrize("case", OTHERS)
async def test_other_servers_constraints_are_taken_or_refused(live: Live, path: str, case: Any) -> None:
    """But never passed over."""
    server, field, value, meant = case
    body = body_of(path)
    if path == MESSAGES and field == "response_format":
        await live.refused(path, {**body, field: value}, said="output_config")
    elif isinstance(meant, Grammar):
        await live.obtain(path, {**body, field: value})
        assert asked(live) == meant, server
    else:
        error = await live.refused(path, {**body, field: value}, said=meant)
        assert error["message"].startswith(field), server
        assert path == MESSAGES or error["param"] == field, server
    for nothing in (None, False) if field in ("guided_json_object", "json_object") else (None,):
        await live.obtain(path, {**body, field: nothing})
        assert asked(live) is None


async def test_anthropics_earlier_word_for_a_form_is_taken(live: Live) -> None:
    await live.obtain(MESSAGES, chat_body(max_tokens=9, output_format={"type": "json_schema", "schema": PERSON}))
    assert asked(live) == LENIENT


BOUNDED = [
    {"regex": "a", "guided_json": PERSON},
    {"regex": "a", "response_format": {"type": "json_object"}},
    {"regex": "a", **only(choice=["a"])},
    {"grammar": {"type": ["json"], "value": {}}},
    {"grammar": {"type": "json"}},
    *({"format": "yaml"}, {"guided_choice": "a"}, {"regex": 3}, {"json_schema": 3}, {"json_schema": "{"}),
    only(json=PERSON, whitespace_pattern=" "),
    only(structural_tag="{}"),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("fields", BOUNDED)
async def test_other_servers_words_have_the_same_bounds(live: Live, path: str, fields: dict[str, object]) -> None:
    assert (await live.refused(path, body_of(path, **fields)))["param"] in (*fields, "structured_outputs")


LOOKING = {"type": "object", "properties": {"p": {"type": "string", "pattern": "^(?!a)"}}, "required": ["p"]}
ODD_TOOL, STRICT = (tool(name="odd", parameters=LOOKING, **more) for more in ({}, {"strict": True}))
IGNORED = "x-lengthwise-ignored"


PARAMETERS, SCHEMA = "tools[1].function.parameters", "response_format.json_schema.schema"
CALLED: dict[str, tuple[dict[str, object], int, str | None]] = {
    # what: (fields, status, what is named as ignored)
    "auto": ({"tools": [TOOL, STRICT]}, 200, None),
    "none": (choosing("none", TOOL, STRICT), 200, None),
    "another is forced": (choosing(tool(name="weather"), STRICT, TOOL), 200, None),
    "forced": (choosing(tool(name="odd"), TOOL, ODD_TOOL), 200, PARAMETERS),
    "any is forced": (choosing("required", TOOL, ODD_TOOL), 200, PARAMETERS),
    "forced and strict": (choosing(tool(name="odd"), TOOL, STRICT), 400, None),
    "any, and one strict": (choosing("required", TOOL, STRICT), 400, None),
    "others are allowed": (choosing(allow("weather", mode="required"), STRICT, TOOL), 200, None),
    "a format": (form(LOOKING), 200, SCHEMA),
    "a format that is not strict": (form(LOOKING, strict=False), 200, SCHEMA),
    "a strict format": (form(LOOKING, strict=True), 400, None),
}


@pytest.mark.parametrize("case", CALLED.values(), ids=CALLED)
async def test_only_what_is_enforced_is_compiled(live: Live, case: tuple[dict[str, object], int, str | None]) -> None:
    fields, status, ignored = case
    reply = await live.ask("POST", CHAT, chat_body(**fields))
    assert reply.status == status, reply
    assert reply.headers.get(IGNORED) == (None if ignored is None else f"{ignored}.properties.p.pattern")
    if status == 400:
        error = reply.json["error"]
        assert "look-around" in error["message"] and "strict" in error["message"]
        assert error["param"] == ("tools" if "tools" in fields else "response_format")


async def test_names_of_properties_do_no_harm_in_the_header(live: Live) -> None:
    odd = {"type": "object", "properties": {'a\r\nx: "é"' * 1000: {"pattern": "(?=a)"}}}
    reply = await live.ask("POST", CHAT, chat_body(**form(odd)))
    assert reply.status == 200
    assert reply.headers[IGNORED].isascii() and len(reply.headers[IGNORED]) < 1000


async def test_arguments_of_no_object_bind_nothing_unless_strict(live: Live) -> None:
    for kind in ("any", ["object", "null"], None, 3):
        for choice in ("auto", "required"):
            await live.chat(**choosing(choice, tool(parameters={"type": kind})))


async def test_all_answers_of_a_call_have_the_grammar(live: Live) -> None:
    await live.complete(prompt=["a", "b"], n=2, **only(regex="a"))
    assert [request.sampling.grammar for request in live.dispatcher.submitted] == [A] * 4


async def test_the_order_of_properties_is_kept(live: Live) -> None:
    """It is the order in which they will be written."""
    await live.chat(**form({"type": "object", "properties": {name: {"type": "null"} for name in "zebra"}}))
    grammar = asked(live)
    assert grammar is not None and [*orjson.loads(grammar.text)["properties"]] == [*"zebra"]


async def test_a_compiled_grammar_is_held_for_as_long_as_its_call_lasts(live: Live) -> None:
    live.dispatcher.pause = 0
    async with live.streaming(CHAT, chat_body(**only(regex="a"))) as content:
        compiler = live.service.model.grammars
        assert compiler is not None
        for place in range(50):  # more than are kept
            await compiler.compile(Grammar(GrammarKind.REGEX, f"b{{{place + 1}}}"))
        assert A in compiler.grammars._known
        live.dispatcher.release()
        await content.read()


DEEP: Any = {}
for _ in range(100):
    DEEP = {"items": DEEP}

UNIQUE, ELSEWHERE = {"type": "array", "uniqueItems": True}, {"$ref": "http://example.org/x"}
BAD: dict[str, tuple[dict[str, object], str]] = {
    # what: (fields, of which the last is at fault; part of the message)
    "no schema": ({"response_format": {"type": "json_schema"}}, "json_schema.schema: is missing"),
    "a schema of null": (form(None), "schema: is missing"),
    "a schema that is a number": (form(3), "must be a JSON object"),
    "an unknown type": (form({"type": "thing"}, strict=True), "thing"),
    "a schema that nothing matches": (form({"type": "integer", "minimum": 2, "maximum": 1}), "minimum"),
    "a keyword that cannot be enforced": (form(UNIQUE, strict=True), "set strict to false"),
    "a schema elsewhere": (form(ELSEWHERE, strict=True), "example.org"),
    "a deep schema": (form(DEEP), "nested more than"),
    "a huge schema": (form({"enum": ["x" * 70_000]}), "shorten it"),
    "both fields": ({"response_format": {"type": "json_object"}, **only(regex="a")}, "give one of them"),
    "nothing asked": (only(), "give one of"),
    "two things asked": (only(regex="a", choice=["b"]), "give one of"),
    "an empty choice": (only(choice=[""]), "length"),
    "a wrong pattern": (only(regex="a("), "unclosed"),
    "a pattern of none": (only(regex=r"[^\s\S]"), "no text matches it"),
    "a wrong grammar": (only(grammar="begin: x"), ""),
    "a schema of broken text": (only(json="{"), "not valid JSON"),
}


@pytest.mark.parametrize(("fields", "said"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_what_cannot_be_asked_is_refused(live: Live, path: str, fields: dict[str, object], said: str) -> None:
    error = await live.refused(path, body_of(path, **fields), param=[*fields][-1], said=said)
    assert error["message"].isprintable() and live.dispatcher.submitted == []


async def test_structured_outputs_do_not_go_with_tools(live: Live) -> None:
    fields = {"tools": [TOOL], **only(regex="a")}
    assert (await live.refused(CHAT, chat_body(**fields)))["param"] == "structured_outputs"
    await live.chat(**fields, tool_choice="none")
    assert asked(live) == A


async def test_a_length_cannot_be_replayed_in_a_grammar() -> None:
    async with live_server(allow_replay=True) as live:
        fields = {"replay_tokens": 5, "response_format": {"type": "json_object"}}
        assert (await live.refused(CHAT, chat_body(**fields)))["param"] == "replay_tokens"


async def test_a_server_may_refuse_to_constrain_answers() -> None:
    asked = ({"response_format": {"type": "json_object"}}, only(regex="a"), choosing("required", TOOL))
    async with live_server(grammars=None, context_length=4096) as live:
        for fields in asked:
            await live.refused(CHAT, chat_body(**fields), param=next(iter(fields)), said="--no-structured-outputs")
        await live.chat(tools=[TOOL])
        await live.chat(response_format={"type": "text"})


VOCABULARY = (FakeText().to_json, FakeText.VOCAB, {END})


async def test_what_is_no_fault_of_the_grammar_is_told_as_that() -> None:
    full, roomy = Grammars(*VOCABULARY, held=-1), Grammars(*VOCABULARY)
    no_process = Mock()
    no_process.run.side_effect = TrialsFailed("grammars cannot be compiled at present; try again later")
    too_many = (GrammarCompiler(full, cast(Any, InThread(roomy))), 429, "too_many_grammars")
    for compiler, status, code in (too_many, (GrammarCompiler(roomy, no_process), 503, "unavailable")):
        async with live_server(grammars=compiler) as live:
            body = chat_body(response_format={"type": "json_object"})
            await live.refused(CHAT, body, status, code=code, said="try again later")


async def test_who_waits_for_a_grammar_is_told_that_the_server_ends() -> None:
    """The trial of a large grammar may take seconds more than what ran: the connection was cut, without an answer."""
    begun, closed, port = Event(), Event(), socket.create_server(("127.0.0.1", 0))

    def last(trial: Trial) -> Outcome:
        begun.set()
        closed.wait()
        raise TrialsFailed("the server is shutting down")

    compiler = GrammarCompiler(Grammars(*VOCABULARY), Mock(run=last, close=closed.set))
    url = f"http://127.0.0.1:{port.getsockname()[1]}"
    body = chat_body(response_format={"type": "json_object"})
    async with played_dispatcher() as dispatcher, aiohttp.ClientSession(url) as session:
        with closing(compiler):
            async with listen(changed(fake_service(dispatcher), {"grammars": compiler}), port):
                call = asyncio.create_task(session.post(CHAT, json=body))
                await asyncio.to_thread(begun.wait)
            async with await call as response:
                assert response.status == 503
                assert (await response.json())["error"]["message"] == "the server is shutting down"
