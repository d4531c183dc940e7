"""Where settings come from, which source wins, and what is said about wrong ones."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from models.options import Option, options_of
from server.config import ConfigError, ServeConfig, load_config


def write(folder: Path, text: str) -> Path:
    file = folder / "config.toml"
    file.write_text(text)
    return file


def toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml_value(one)}" for name, one in value.items()) + "}"
    return repr(list(value) if isinstance(value, tuple) else value)


def variable_value(value: object) -> str:
    if isinstance(value, dict):
        return json.dumps(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


CHECKED: Mapping[str, object] = {
    "strategy": "baton-pd",
    "device": "cpu",
    "uds_mode": "0660",
    "allowed_origins": ("http://a", "null"),
    "otlp_traces_endpoint": "http://localhost:4318/v1/traces",
    "override_generation_config": {"temperature": 0.5, "top_k": 7},
}
"""Values of settings that a function of their own checks."""


def another_value(setting: Option) -> object:
    """A value that is not the default."""
    listed = [str(one) for one in setting.listed if one != setting.default]
    if setting.name in CHECKED:
        return CHECKED[setting.name]
    if setting.many:
        return tuple(listed[:2]) or ("a", "b")
    if listed:
        return listed[-1]
    if setting.kind in (int, float):
        part = 0.25 if setting.kind is float else 1
        return part if setting.bounds.le == 1 else (setting.default or setting.bounds.ge or 0) + part
    return True if setting.kind is bool else setting.kind(setting.name)


def test_every_field_can_be_set_from_each_source(tmp_path: Path) -> None:
    values = {setting.name: another_value(setting) for setting in options_of(ServeConfig)}
    assert all(values[name] != one for name, one in asdict(ServeConfig()).items())
    environ = {f"LENGTHWISE_{name.upper()}": variable_value(value) for name, value in values.items()}
    toml = "\n".join(f"{name} = {toml_value(value)}" for name, value in values.items())
    for config in (load_config({}, environ, None), load_config({}, {}, write(tmp_path, toml))):
        assert asdict(config) == values


SAID = [
    ({"LENGTHWISE_ALLOW_REPLAY": "false"}, "", False),
    ({"LENGTHWISE_ALLOW_REPLAY": "False"}, "", False),
    ({"LENGTHWISE_ALLOW_REPLAY": "TRUE"}, "", True),
    ({}, "allow_replay = true", True),
    ({"LENGTHWISE_ALLOW_REPLAY": "false"}, "allow_replay = true", False),
    ({"LENGTHWISE_ALLOW_REPLAY": ""}, "allow_replay = true", True),  # as if it were not set
]


@pytest.mark.parametrize(("environ", "toml", "allowed"), SAID)
def test_yes_and_no_are_true_and_false(tmp_path: Path, environ: dict[str, str], toml: str, allowed: bool) -> None:
    assert load_config({}, environ, write(tmp_path, toml)).allow_replay is allowed


def test_toml_keys_may_be_written_like_flags_and_whole_numbers_do_for_fractions(tmp_path: Path) -> None:
    config = load_config({}, {}, write(tmp_path, 'max-num-seqs = 4\nbody_timeout = 3\nserved_model_name = "one"\n'))
    assert (config.max_num_seqs, config.body_timeout, config.served_model_name) == (4, 3.0, ("one",))


GENERATION = "LENGTHWISE_OVERRIDE_GENERATION_CONFIG"
WRONG: list[tuple[dict[str, str], str, list[str]]] = [
    ({"LENGTHWISE_PORT": "many"}, "", ["LENGTHWISE_PORT", "'many'", "whole number"]),
    ({"LENGTHWISE_PORT": "70000"}, "", ["LENGTHWISE_PORT", "70000", "65535"]),
    ({"LENGTHWISE_BODY_TIMEOUT": "nan"}, "", ["LENGTHWISE_BODY_TIMEOUT", "nan"]),
    ({"LENGTHWISE_DTYPE": "int3"}, "", ["LENGTHWISE_DTYPE", "bfloat16"]),
    ({"LENGTHWISE_STRATEGY": "luck"}, "", ["LENGTHWISE_STRATEGY", "baton-pd"]),
    ({GENERATION: "{"}, "", [GENERATION, "a JSON object"]),
    ({GENERATION: "[1]"}, "", ["a JSON object"]),
    ({}, "override_generation_config = 1", ["override_generation_config", "a JSON object"]),
    ({}, "[override_generation_config]\ntemprature = 1", ["temprature", "did you mean temperature?", "top_k"]),
    ({}, "[override_generation_config]\ntop_p = 1.5", ["override_generation_config", "<= 1.0", "top_p"]),
    ({}, "max_num_seq = 1", ["max_num_seq", "did you mean max_num_seqs?"]),
    ({}, "zzz = 1", ["zzz", "--help"]),
    ({}, 'port = "80"', ["port", "'80'", "whole number"]),
    ({}, "port = true", ["port", "True", "whole number"]),
    ({}, "port = 1.5", ["port", "1.5", "whole number"]),
    ({"LENGTHWISE_ALLOW_REPLAY": "maybe"}, "", ["LENGTHWISE_ALLOW_REPLAY", "'maybe'", "true or false"]),
    ({}, "allow_replay = 1", ["allow_replay", "1", "true or false"]),
    ({}, 'allow_replay = "true"', ["allow_replay", "'true'", "true or false"]),
    ({}, "host = 1", ["host", "text"]),
    ({}, 'uds_mode = "rw"', ["uds_mode", "'rw'", "0660"]),
    ({}, "served_model_name = [1]", ["served_model_name", "text"]),
    ({}, "max_num_seqs = 0", ["max_num_seqs", "between 1 and 65536"]),
    ({}, "max_model_len = 1", ["max_model_len", "at least 2"]),
    ({}, "body_timeout = inf", ["body_timeout", "inf"]),
    ({}, "port = ", ["not valid TOML"]),
    ({}, "[serve]\nport = 1", ["serve"]),
]


@pytest.mark.parametrize(("environ", "toml", "said"), WRONG)
def test_wrong_settings_name_their_source(tmp_path: Path, environ: dict[str, str], toml: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({}, environ, write(tmp_path, toml))
    assert [part for part in said if part not in str(caught.value)] == []


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Only the first was told, and the next after it was mended."""
    with pytest.raises(ConfigError) as caught:
        load_config({}, {"LENGTHWISE_PORT": "x", "LENGTHWISE_DTYPE": "int3"}, write(tmp_path, "zzz = 1\nhost = 1\n"))
    lines = str(caught.value).splitlines()
    names = ("zzz", "host", "LENGTHWISE_DTYPE", "LENGTHWISE_PORT")
    assert len(lines) == 4 and all(any(name in line for line in lines) for name in names)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml.*--config"):
        load_config({}, {}, tmp_path / "absent.toml")


@pytest.mark.parametrize(("given", "device", "tokens"), [(None, "cpu", 512), (None, "cuda:1", 2048), (64, "cuda", 64)])
def test_more_of_a_prompt_is_read_at_a_time_on_cuda(given: int | None, device: str, tokens: int) -> None:
    assert ServeConfig(max_num_batched_tokens=given).chunk_tokens(device) == tokens
