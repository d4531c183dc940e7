"""Schemathesis asks a live server whatever the OpenAPI document allows, and some of what it forbids: the answers are
what the document says, and none is a failure of the server.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings, strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi import checks

from server.api.openapi import document
from server.api.operation import Operation
from server.http.operations import OPERATIONS
from tests import tiny
from tests.live_server import serve_here
from tests.models import tiny_embedder

API = schemathesis.openapi.from_dict(document(OPERATIONS))
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
HARD_TO_GUESS = frozenset(
    (
        *("model", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "replay_tokens"),
        *("stop_token_ids", "logit_bias", "prompt_logprobs", "top_logprobs", "best_of", "n", "suffix", "deadline_ms"),
        *("functions", "tools", "tool_choice", "response_format", "structured_outputs", "text", "stream_options"),
        *("store", "background", "truncation", "previous_response_id", "conversation", "dimensions"),
    )
)
"""Fields whose right values depend on the model or on each other: with all of them, no body would ever be right."""

RIGHT = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": "Hi", "tokens": [1, 2]}
"""Values for fields that are there, and wrong more often than not when they are guessed."""

FREE = frozenset({"invalid_value", "invalid_json", "unsupported"})
"""Codes of refusals for single fields: a body that the document allows meets none of them, but for lengths to replay,
which this server does not, and best_of, whose value is that of n.
"""

LOOSE = frozenset({"estimate", "createMessage", "countMessageTokens", "createResponse"})
"""Operations whose bodies are told less exactly than they are checked: that of any call, Anthropic's,
and those of responses."""

QUICK = {"createChatCompletion": 50, "createResponse": 50, "createEmbedding": 30, "createCompletion": 60}
QUICK |= {"tokenize": 40, "detokenize": 60}
"""Requests to the operations that have a body, the same each time."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("models")
    embedder = tiny_embedder.build(folder / "embedder")
    with serve_here(tiny.build(folder / "tiny", context=64), "--embedding-model", str(embedder)) as url:
        yield url


def statuses_of(url: str, operation: Operation, count: int) -> set[int]:
    """Statuses of the answers to `count` generated requests, each of which is checked."""
    described = API[operation.template][operation.method.upper()]
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if operation.body else [GenerationMode.POSITIVE]
    cases = st.one_of(*(described.as_strategy(generation_mode=mode) for mode in modes))
    statuses: set[int] = set()

    @settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(cases, st.booleans())
    def ask(case: Case[Any], simple: bool) -> None:
        if case.headers:
            case.headers.clear()  # values that are no HTTP do not get as far as the API
        body = case.meta.components.get(ParameterLocation.BODY) if case.meta is not None else None
        wrong = body is not None and body.mode is GenerationMode.NEGATIVE
        if simple and not wrong and isinstance(case.body, dict):
            case.body = simpler(case.body)
        times = {504: "deadline_ms", 503: "promise"}  # a machine may be too slow for them
        response = case.call(base_url=url, timeout=150)  # the first text to embed waits for a process to start
        late = isinstance(case.body, dict) and bool(case.body.get(times.get(response.status_code, "")))
        meant: list[CheckFunction] = [not_a_server_error] if late else []
        case.validate_response(response, checks=CHECKS, excluded_checks=meant)
        statuses.add(response.status_code)
        if wrong:
            assert response.status_code != 200, f"the document forbids {case.body!r}"
        elif response.status_code == 400 and operation.name not in LOOSE:
            error = response.json()["error"]
            told = f"the document allows {case.body!r}: {error['message']}"
            param = error.get("param")  # other APIs than OpenAI's name neither
            assert error.get("code") not in FREE or param in ("replay_tokens", "best_of", "top_logprobs"), told

    ask()
    return statuses


DESCRIBED = [one for one in OPERATIONS if one.name]


@pytest.mark.parametrize("operation", DESCRIBED, ids=lambda operation: operation.name)
def test_answers_are_as_the_document_says(url: str, operation: Operation) -> None:
    statuses = statuses_of(url, operation, QUICK.get(operation.name, 5))
    guesses = "{" in operation.template  # ids that exist cannot be guessed
    keeps = operation.template.startswith(("/v1/files", "/v1/batches"))  # which this server does not
    if operation.name not in LOOSE:
        assert (404 if guesses or keeps else 200) in statuses, statuses


def simpler(body: dict[str, Any]) -> dict[str, Any]:
    """A body with less to get wrong: no empty fields, and right values where they are hard to guess."""
    given = {name: value for name, value in body.items() if value is not None and name not in HARD_TO_GUESS}
    kept = {name: RIGHT.get(name, value) for name, value in given.items()}
    return {name: value for name, value in kept.items() if not (name == "messages" and "prompt" in kept)}
