"""Defaults for what requests leave out: a model's own, an operator's, and which are refused."""

from typing import Any

import pytest

from models.network.generation_config import SamplingDefaults, check_overrides, sampling_defaults

RECOMMENDED = b'{"do_sample": true, "temperature": 0.2, "top_p": 0.9, "max_new_tokens": 512, "eos_token_id": 2}'


OPERATORS = [
    ({}, SamplingDefaults(temperature=0.2, top_p=0.9, max_new_tokens=512)),
    ({"temperature": 1, "top_k": 40}, SamplingDefaults(1.0, 0.9, 40, max_new_tokens=512)),
    ({"temperature": None, "max_new_tokens": None}, SamplingDefaults(top_p=0.9)),  # the API's own
    ({"repetition_penalty": 1.1, "min_p": 0.1}, SamplingDefaults(0.2, 0.9, 0, 0.1, 1.1, 512)),
]


@pytest.mark.parametrize(("given", "expected"), OPERATORS)
def test_an_operators_fields_take_the_place_of_the_models(given: dict[str, Any], expected: SamplingDefaults) -> None:
    check_overrides(given)
    overridden = sampling_defaults(RECOMMENDED).override(given)
    assert overridden == expected
    assert type(overridden.top_k) is int


IMPOSSIBLE = [
    ({"top-k": 1}, r"unknown key 'top-k'; did you mean top_k\? The keys are temperature, top_p"),
    ({"zzz": 1}, "unknown key 'zzz': The keys are temperature"),
    ({"temperature": 2.5}, "<= 2.0.*temperature"),
    ({"temperature": "hot"}, "float.*temperature"),
    ({"top_p": -0.1}, ">= 0.*top_p"),
    ({"top_k": True}, "int.*top_k"),
    ({"max_new_tokens": 0}, ">= 1.*max_new_tokens"),
]


@pytest.mark.parametrize(("given", "said"), IMPOSSIBLE)
def test_an_unknown_field_and_a_value_out_of_bounds_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_overrides(given)
