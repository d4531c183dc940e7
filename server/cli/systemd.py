"""`lengthwise systemd`: print the unit, or put it, a configuration and a key where systemd finds them."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from models.errors import UserError
from server.cli.config import ServeConfig, load_config
from server.cli.unit import CONFIG, KEYS, NAME, Unit

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

UNITS = Path("/etc/systemd/system")
HIDDEN = (Path("/home"), Path("/root"), Path("/run/user"))
"""Folders that the unit cannot look into (ProtectHome)."""

FIRST_CONFIG = """\
# Settings of the service; `lengthwise serve --help` explains them all. Restart it after a change.
host = "127.0.0.1"
port = 8000
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "systemd",
        help="print or install a systemd unit",
        description="A hardened systemd unit that runs `lengthwise serve` with a watchdog and keys as credentials.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _action(actions, "print", "write the unit to standard output", _print)
    install = _action(
        actions, "install", "write the unit, and a configuration and a key where there are none", _install
    )
    install.add_argument("--force", action="store_true", help="replace a unit that differs")
    install.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="install below this folder")


def _action(actions: Subparsers, name: str, help: str, work: object) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=help)
    parser.add_argument("--config", type=Path, default=CONFIG, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--program", type=Path, metavar="FILE", help="what to run (default: this program)")
    parser.set_defaults(run=run, work=work, keys=KEYS)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say; returns the exit code."""
    args.work(args)
    return 0


def _print(args: argparse.Namespace) -> None:
    sys.stdout.write(_unit(args, args.config).text())


def _install(args: argparse.Namespace) -> None:
    config, keys = _below(args.root, args.config), _below(args.root, args.keys)
    _require_visible(args)
    try:
        _write_once(config, FIRST_CONFIG, 0o644)
        made = _write_once(keys, f"{secrets.token_hex(32)}\n", 0o600)
        unit = _below(args.root, UNITS / NAME)
        _write_unit(unit, _unit(args, config).text(), force=args.force)
    except PermissionError as error:
        raise UserError(f"{error.filename} cannot be written: run this as root, or give --root") from None
    _reload(args.root)
    print(f"Wrote {unit}, which runs `{_program(args)} serve --config {args.config}`.")
    print(f"{'Made a key' if made else 'The keys are'} in {keys}; callers must send one as a bearer token.")
    print(f"Next: edit {config}, then `systemctl enable --now {NAME}` and `journalctl -fu {NAME}`.")


def _unit(args: argparse.Namespace, config: Path) -> Unit:
    """For the configuration as it is now, where it is there."""
    timeout = load_config({}, {}, config).shutdown_timeout if config.exists() else ServeConfig().shutdown_timeout
    return Unit(_program(args), args.config, args.keys, timeout)


def _program(args: argparse.Namespace) -> Path:
    given: Path | None = args.program
    return given or Path(shutil.which(sys.argv[0]) or Path(sys.executable).with_name("lengthwise")).absolute()


def _require_visible(args: argparse.Namespace) -> None:
    program = _program(args)
    interpreter = program if args.program else Path(sys.executable)
    for real in (program, program.resolve(), interpreter.resolve()):
        if any(real.is_relative_to(folder) for folder in HIDDEN):
            raise UserError(
                f"{real} is in a home folder, which the service cannot see: install Lengthwise elsewhere, "
                "such as in a virtual environment below /opt, and run `systemd install` from there"
            )


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/") if path.is_absolute() else path


def _write_once(path: Path, text: str, mode: int) -> bool:
    """Whether it was not there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return False
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return True


def _write_unit(path: Path, text: str, *, force: bool) -> None:
    if path.exists() and path.read_text("utf-8") != text and not force:
        raise UserError(f"{path} is there and differs: compare it with `lengthwise systemd print`, or use --force")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _reload(root: Path) -> None:
    """Let systemd read it, where systemd runs and this is its own folder."""
    if root == Path("/") and Path("/run/systemd/system").exists():
        subprocess.run(["systemctl", "daemon-reload"], check=False)
