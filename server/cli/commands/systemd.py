"""`lengthwise systemd`: print or install lengthwise.service (docs/operations.md). Left out: MemoryDenyWriteExecute
(oneDNN and CUDA compile at run time), PrivateDevices (hides the GPU), ProcSubset=pid (/proc/meminfo and /proc/cpuinfo
are read).
"""

import re
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from models.errors import UsageError, UserError
from models.options import Subparsers, add_command, describe, option
from server.config import FrontConfig, GatewayConfig, ServeConfig
from server.keys import CREDENTIAL
from server.settings import load_settings

UNITS = Path("/etc/systemd/system")
TEXT = "lengthwise.service"  # template beside this file
FOLDER = Path("/etc/lengthwise")
CONFIG, GATEWAY_CONFIG = FOLDER / "config.toml", FOLDER / "gateway.toml"
KEYS = FOLDER / CREDENTIAL
HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))  # ProtectHome, PrivateTmp
GPU = re.compile(r".*(?:nvidia|CUDA).*\n")  # lines of the unit that a gateway has no use for

FIRST_CONFIG = """\
# Settings of the service; `lengthwise {command} --help` explains them all. Restart it after a change.
host = "127.0.0.1"
port = 8000
"""
FIRST_BACKEND = 'backend = ["http://127.0.0.1:8001/v1"]\n'

STOP_MARGIN = 30.0  # seconds beyond --shutdown-timeout


def unit_name(template: bool, gateway: bool = False) -> str:
    return f"lengthwise{'-gateway' * gateway}{'@' * template}.service"


def write_unit(
    program: Path, config: Path = CONFIG, shutdown_timeout: float = 30.0, template: bool = False, gateway: bool = False
) -> str:
    """A `template` serves instances with a configuration each."""
    command, of = ("gateway", " gateway") if gateway else ("serve", "")
    one = {"config": _escaped(config), "of": of, "own": of.replace(" ", "-"), "journal": of.strip() or "journal"}
    each = {"config": f"{FOLDER}/%i.toml", "of": f"{of} %i", "own": "/%i", "journal": "%i"}
    stop, own = round(shutdown_timeout + STOP_MARGIN), each if template else one
    text, name = Path(__file__).with_name(TEXT).read_text("utf-8"), unit_name(template, gateway)
    text = GPU.sub("", text) if gateway else text
    return text.format(name=name, program=_escaped(program), command=command, keys=KEYS, stop=stop, **own)


def _escaped(path: Path) -> str:
    """systemd.syntax(7)."""
    return str(path).replace("\\", "\\\\").replace("%", "%%").replace(" ", "\\x20")


@dataclass(frozen=True, kw_only=True)
class Print:
    """A unit to print."""

    config: Path | None = option(None)
    """configuration that the service reads (default: /etc/lengthwise/config.toml, of a gateway gateway.toml)"""
    program: Path | None = option(None, "what to run (default: this program)")
    template: bool = option(False, "a unit for several servers: lengthwise@NAME, which reads /etc/lengthwise/NAME.toml")
    gateway: bool = option(False, "a unit of `lengthwise gateway`: lengthwise-gateway")

    @property
    def reads(self) -> Path:
        return self.config or (GATEWAY_CONFIG if self.gateway else CONFIG)


@dataclass(frozen=True, kw_only=True)
class Install(Print):
    """A unit to install."""

    force: bool = option(False, "replace a unit that differs")
    root: Path = option(Path("/"), "install below this folder", metavar="DIR")


def add_parser(subparsers: Subparsers) -> None:
    """Print or install a systemd unit.

    It is hardened, and runs `lengthwise serve` or `gateway` with a watchdog and keys as credentials.

    Example: lengthwise systemd print
    """
    parser = subparsers.add_parser("systemd", **describe(add_parser))
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_command(actions, "print", Print, _print)
    add_command(actions, "install", Install, _install)


def _print(options: Print) -> None:
    """Write the unit to standard output."""
    sys.stdout.write(_unit(options, options.reads))
    if hidden := _find_hidden(options):
        sys.stderr.write(f"warning: {hidden}\n")


def _install(options: Install) -> None:
    """Write the unit, and a configuration and a key where there are none."""
    config, keys = _below(options.root, options.reads), _below(options.root, KEYS)
    program, unit = _program(options), _unit(options, config)
    if hidden := _find_hidden(options):
        raise UserError(hidden)
    name = unit_name(options.template, options.gateway)
    command = "gateway" if options.gateway else "serve"
    written = FOLDER / "NAME.toml" if options.template else options.reads
    try:
        if not options.template:
            _write_once(config, FIRST_CONFIG.format(command=command) + FIRST_BACKEND * options.gateway, 0o644)
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
    print(f"Wrote {path}, which runs `{program} {command} --config {written}`.")
    print(f"{'Made a key' if made else 'The keys are'} in {keys}; callers must send one as a bearer token.")
    name = name.replace("@", "@NAME")
    print(f"Next: edit {_below(options.root, written)}, then `systemctl enable --now {name}`, `journalctl -fu {name}`.")


def _unit(options: Print, config: Path) -> str:
    if options.template and options.config is not None:
        raise UsageError("--config is for one server: with --template each reads /etc/lengthwise/NAME.toml")
    kind: type[FrontConfig] = GatewayConfig if options.gateway else ServeConfig
    settings = load_settings(kind, {}, {}, config) if config.exists() else ServeConfig()
    return write_unit(_program(options), options.reads, settings.shutdown_timeout, options.template, options.gateway)


def _program(options: Print) -> Path:
    found = Path(shutil.which(sys.argv[0]) or Path(sys.executable).with_name("lengthwise"))
    return options.program or found.absolute()


def _find_hidden(options: Print) -> str:
    """What the service could not see, and the remedy, or empty."""
    program = _program(options)
    interpreter = program if options.program else Path(sys.executable)
    paths = program, program.resolve(), interpreter.resolve(), options.reads
    hidden = [path for path in paths if any(path.is_relative_to(folder) for folder in HIDDEN)]
    remedy = "run Lengthwise from an environment below /opt, with its configuration below /etc"
    return f"{hidden[0]} is in a home or temporary folder, which the service cannot see: {remedy}" if hidden else ""


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
