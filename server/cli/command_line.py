"""A command line that answers mistakes in three lines: what is wrong, what may have been meant, and where help is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from models.options import suggest


class CommandLine(argparse.ArgumentParser):
    """Subcommands are read by the same class, and each tells of its own flags. All wrong values are told at once."""

    _mistakes: tuple[str, ...] = ()  # values that cannot be used, found so far

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        errors = "".join(f"{self.prog}: error: {one}\n" for one in (*self._mistakes, message))
        self.exit(2, f"{errors}usage: {self.prog} [FLAG ...]; `{self.prog} --help` explains it\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse here what this command does not know; the program above it knows none of its flags."""
        known, strange = super().parse_known_args(args, namespace)
        if strange:
            self.error(self._about(strange, sys.argv[1:] if args is None else args))
        if self._mistakes:
            self._mistakes, last = self._mistakes[:-1], self._mistakes[-1]
            self.error(last)
        return known, strange

    def _about(self, strange: Sequence[str], args: Sequence[str]) -> str:
        first = strange[0]
        if first.startswith("-"):
            flag = first.partition("=")[0]
            return f"unrecognized arguments: {' '.join(strange)}{suggest(flag, self._option_string_actions)}"
        flags = [word for word in args[: [*args].index(first)] if word in self._option_string_actions]
        repeated = f"; a flag for several values takes one at a time: {flags[-1]} A {flags[-1]} B" if flags else ""
        return f"unrecognized arguments: {' '.join(strange)}{repeated}"

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            self._mistakes = (*self._mistakes, str(error))
            return None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"{value!r} is no command{suggest(str(value), action.choices)}")
        super()._check_value(action, value)
