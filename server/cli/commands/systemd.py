"""`lengthwise systemd`: print or install lengthwise.service (docs/operations.md). Left out: MemoryDenyWriteExecute
(oneDNN and CUDA compile at run time), PrivateDevices (hides the GPU), ProcSubset=pid (/proc/meminfo and /proc/cpuinfo
are read).
"""

import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from models.errors import UserError
from models.options import Subparsers, add_command, describe, option
from server.config import ServeConfig, load_config
from server.keys import CREDENTIAL

UNITS = Path("/etc/systemd/system")
TEXT = "lengthwise.service"  # template beside this file
FOLDER = Path("/etc/lengthwise")
CONFIG = FOLDER / "config.toml"
KEYS = FOLDER / CREDENTIAL
HIDDEN = (Path("/home"), Path("/root"), Path("/run/user"))  # ProtectHome

FIRST_CONFIG = """\
# Settings of the service; `lengthwise serve --help` explains them all. Restart it after a change.
host = "127.0.0.1"
port = 8000
"""

STOP_MARGIN = 30.0  # seconds beyond --shutdown-timeout


def unit_name(template: bool) -> str:
    return "lengthwise@.service" if template else "lengthwise.service"


def write_unit(program: Path, config: Path = CONFIG, shutdown_timeout: float = 30.0, template: bool = False) -> str:
    """A `template` serves instances with a configuration each."""
    one = {"config": _escaped(config), "of": "", "own": "", "journal": "journal"}
    each = {"config": f"{FOLDER}/%i.toml", "of": " %i", "own": "/%i", "journal": "%i"}
    stop, own = round(shutdown_timeout + STOP_MARGIN), each if template else one
    text = Path(__file__).with_name(TEXT).read_text("utf-8")
    return text.format(name=unit_name(template), program=_escaped(program), keys=KEYS, stop=stop, **own)


def _escaped(path: Path) -> str:
    """systemd.syntax(7)."""
    return str(path).replace("\\", "\\\\").replace("%", "%%").replace(" ", "\\x20")


@dataclass(frozen=True, kw_only=True)
class Print:
    """A unit to print."""

    config: Path = option(CONFIG)
    """configuration that the service reads"""
    program: Path | None = option(None)
    """what to run (default: this program)"""
    template: bool = option(False)
    """a unit for several servers: lengthwise@NAME, which reads /etc/lengthwise/NAME.toml"""


@dataclass(frozen=True, kw_only=True)
class Install(Print):
    """A unit to install."""

    force: bool = option(False)
    """replace a unit that differs"""
    root: Path = option(Path("/"), metavar="DIR")
    """install below this folder"""


def add_parser(subparsers: Subparsers) -> None:
    """Print or install a systemd unit.

    It is hardened, and runs `lengthwise serve` with a watchdog and keys as credentials.

    Example: lengthwise systemd print
    """
    parser = subparsers.add_parser("systemd", **describe(add_parser))
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_command(actions, "print", Print, _print)
    add_command(actions, "install", Install, _install)


def _print(options: Print) -> None:
    """Write the unit to standard output."""
    sys.stdout.write(_unit(options, options.config))


def _install(options: Install) -> None:
    """Write the unit, and a configuration and a key where there are none."""
    config, keys = _below(options.root, options.config), _below(options.root, KEYS)
    program, unit = _program(options), _unit(options, config)
    _require_visible(program, program if options.program else Path(sys.executable))
    name, written = unit_name(options.template), FOLDER / "NAME.toml" if options.template else options.config
    try:
        if not options.template:
            _write_once(config, FIRST_CONFIG, 0o644)
        made = _write_once(keys, f"{secrets.token_hex(32)}\n", 0o600)
        path = _below(options.root, UNITS / name)
        if path.exists() and path.read_text("utf-8") != unit and not options.force:
            raise UserError(f"{path} is there and differs: compare it with `lengthwise systemd print`, or use --force")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(unit, "utf-8")
    except PermissionError as error:
        raise UserError(f"{error.filename} cannot be written: run this as root, or give --root") from None
    if options.root == Path("/") and Path("/run/systemd/system").exists():  # systemd runs, and this is the live system
        subprocess.run(["systemctl", "daemon-reload"], check=False)
    print(f"Wrote {path}, which runs `{program} serve --config {written}`.")
    print(f"{'Made a key' if made else 'The keys are'} in {keys}; callers must send one as a bearer token.")
    name = name.replace("@", "@NAME")
    print(f"Next: edit {_below(options.root, written)}, then `systemctl enable --now {name}`, `journalctl -fu {name}`.")


def _unit(options: Print, config: Path) -> str:
    if options.template and options.config != CONFIG:
        raise UserError("--config is for one server: with --template each reads /etc/lengthwise/NAME.toml")
    timeout = load_config({}, {}, config).shutdown_timeout if config.exists() else ServeConfig().shutdown_timeout
    return write_unit(_program(options), options.config, timeout, options.template)


def _program(options: Print) -> Path:
    found = Path(shutil.which(sys.argv[0]) or Path(sys.executable).with_name("lengthwise"))
    return options.program or found.absolute()


def _require_visible(program: Path, interpreter: Path) -> None:
    for real in (program, program.resolve(), interpreter.resolve()):
        if any(real.is_relative_to(folder) for folder in HIDDEN):
            remedy = "install Lengthwise into an environment below /opt, and run `systemd install` from there"
            raise UserError(f"{real} is in a home folder, which the service cannot see: {remedy}")


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/") if path.is_absolute() else path


def _write_once(path: Path, text: str, mode: int) -> bool:
    """Whether it was written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.touch(mode, exist_ok=False)
    except FileExistsError:
        return False
    path.write_text(text, "utf-8")
    return True
