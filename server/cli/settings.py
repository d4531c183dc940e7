"""Settings from the command line, the environment and a file, all generated from the fields of one dataclass.

It knows no particular setting. A field's metadata says how it is explained and what it may hold; see `option`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from models.errors import UserError

PREFIX = "LENGTHWISE_"

T = TypeVar("T")
Value: TypeAlias = str | int | float | Path | dict[str, Any]


class ConfigError(UserError):
    """A setting cannot be used; the message names it as the user wrote it, and the remedy."""

    exit_code = 78
    """EX_CONFIG: a service manager should not try again."""


def option(
    default: T,
    help: str,
    *,
    choices: Callable[[], Iterable[str]] | None = None,
    low: float = -math.inf,
    high: float = math.inf,
    positional: bool = False,
    secret: bool = False,
    check: Callable[[Any], None] | None = None,
) -> T:
    """A dataclass field that users can set; numbers lie in [low, high]. A secret one is left out of what is printed.

    `check` raises ValueError for a value of the right type that cannot be used all the same.
    """
    metadata = {"help": help, "choices": choices, "low": low, "high": high, "positional": positional, "check": check}
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True)
class Setting:
    """One field, as users meet it."""

    name: str
    kind: type[Value]
    many: bool
    """Whether it holds several values."""
    default: object
    help: str
    choices: tuple[str, ...]
    low: float
    high: float
    positional: bool
    check: Callable[[Any], None] | None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def has_opposite(self) -> bool:
        """Whether a switch has a flag to turn it off as well; one that is a `no` would need a double one."""
        return not self.name.startswith("no_")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def from_text(self, text: str) -> object:
        """One value as the command line has it; raises ValueError."""
        try:
            value = _PARSERS.get(self.kind, self.kind)(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {_NAMES[self.kind]}") from None
        return self._checked(value)

    def from_variable(self, text: str) -> object:
        """The value as the environment has it, several parted by commas; raises ValueError."""
        if not self.many:
            return self.from_text(text)
        return tuple(self.from_text(part.strip()) for part in text.split(","))

    def from_toml(self, value: object) -> object:
        """The value as a TOML file has it; raises ValueError."""
        if not self.many:
            return self._typed(value)
        return tuple(self._typed(one) for one in (value if isinstance(value, list) else [value]))

    def _typed(self, value: object) -> object:
        accepted = _TOML_TYPES[self.kind]
        if not isinstance(value, accepted) or isinstance(value, bool) is not (self.kind is bool):
            raise ValueError(f"{value!r} is not {_NAMES[self.kind]}")
        return self._checked(value) if self.kind is dict else self.from_text(str(value))

    def _checked(self, value: Any) -> object:
        if self.check is not None:
            self.check(value)
        if self.choices and value not in self.choices:
            raise ValueError(f"{value!r} is none of {', '.join(self.choices)}")
        if isinstance(value, int | float) and not (math.isfinite(value) and self.low <= value <= self.high):
            raise ValueError(f"{value} is not {self._range}")
        return value

    @property
    def _range(self) -> str:
        if self.high == math.inf:
            return f"at least {written(self.low)}"
        return f"between {written(self.low)} and {written(self.high)}"


def written(bound: float) -> str:
    """A bound in all its digits."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


_TOML_TYPES: Mapping[type[Value], tuple[type, ...]] = types.MappingProxyType(
    {str: (str,), int: (int,), float: (float, int), bool: (bool,), Path: (str,), dict: (dict,)}
)
_NAMES: Mapping[type[Value], str] = types.MappingProxyType(
    {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        Path: "a path",
        dict: "a JSON object",
    }
)


def _truth(text: str) -> bool:
    """Raises ValueError for anything but true and false, in any case."""
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _object(text: str) -> dict[str, Any]:
    """Raises ValueError for anything but a JSON object."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


_PARSERS: Mapping[type[Value], Callable[[str], Any]] = types.MappingProxyType({bool: _truth, dict: _object})
"""How a value is read from text, where its type does not do so by itself."""


def settings(config: type) -> tuple[Setting, ...]:
    """Every field of a configuration class that `option` made, in order."""
    hints = typing.get_type_hints(config)
    return tuple(_setting(one, hints[one.name]) for one in dataclasses.fields(config))


def _setting(one: dataclasses.Field[Any], hint: object) -> Setting:
    kind = next(kind for kind in typing.get_args(hint) or (hint,) if kind is not types.NoneType)
    choices = one.metadata["choices"]
    return Setting(
        name=one.name,
        kind=typing.get_origin(kind) or kind,
        many=typing.get_origin(hint) is tuple,
        default=one.default,
        help=one.metadata["help"],
        choices=() if choices is None else tuple(choices()),
        low=one.metadata["low"],
        high=one.metadata["high"],
        positional=one.metadata["positional"],
        check=one.metadata["check"],
    )


def gather(
    known: Sequence[Setting], given: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> dict[str, object]:
    """Values by name: the command line's, else the environment's, else the file's. Raises ConfigError."""
    return {**_from_file(known, file), **_from_environ(known, environ), **given}


def _from_environ(known: Sequence[Setting], environ: Mapping[str, str]) -> dict[str, object]:
    """An empty variable counts as unset, since many tools cannot leave one out."""
    present = [setting for setting in known if environ.get(setting.variable)]
    return {one.name: _named(one.variable, one.from_variable, environ[one.variable]) for one in present}


def strangers(known: Sequence[Setting], environ: Mapping[str, str], others: Iterable[str] = ()) -> list[str]:
    """What to say of variables that look like settings and are none; `others` are read elsewhere.

    They are no error, since programs that start this one may set some: Kubernetes does for a service of this name.
    """
    names = [*(setting.name.upper() for setting in known), *others]
    found = sorted(name.removeprefix(PREFIX) for name in environ if name.startswith(PREFIX))
    return [f"{PREFIX}{name} is no setting{_setting_meant(name, names, PREFIX)}" for name in found if name not in names]


def _from_file(known: Sequence[Setting], file: Path | None) -> dict[str, object]:
    if file is None:
        return {}
    by_name = {setting.name: setting for setting in known}
    values: dict[str, object] = {}
    for key, value in _read(file).items():
        setting = by_name.get(key.replace("-", "_"))
        if setting is None:
            raise ConfigError(f"{file}: unknown key {key!r}{_setting_meant(key, by_name)}")
        values[setting.name] = _named(f"{file}: {key}", setting.from_toml, value)
    return values


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; check --config") from None
    except ValueError as error:
        raise ConfigError(f"{file}: is not valid TOML: {error}") from None


def suggestion(word: str, names: Iterable[str], prefix: str = "") -> str:
    """What to say of a word that is none of these: the nearest of them, if one is near."""
    near = difflib.get_close_matches(word, list(names), n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _setting_meant(key: str, names: Iterable[str], prefix: str = "") -> str:
    return suggestion(key.replace("-", "_"), names, prefix) or "; `lengthwise serve --help` lists them all"


def _named(source: str, convert: Callable[[Any], object], value: object) -> object:
    try:
        return convert(value)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
