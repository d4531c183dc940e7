"""The unit: what systemd's own tools say of it, and what installing it writes and leaves alone."""

import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from server.cli import main as cli
from server.cli.commands.systemd import unit_name, write_unit
from server.config import GatewayConfig
from server.settings import load_settings
from tests.server.cli.commands.runner import Told

PROGRAM = Path("/usr/bin/env")  # any program that is there

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")


@pytest.fixture(params=[{}, {"template": True}, {"gateway": True}], ids=["one", "template", "gateway"])
def unit(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / unit_name(**{"template": False, **request.param})
    path.write_text(write_unit(PROGRAM, **request.param))
    return path


@needs_systemd
def test_it_is_hardened_with_an_exposure_of_2_at_most(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (level,) = re.findall(r"Overall exposure level for lengthwise(?:-gateway|@.*)?\.service: (\d\.\d)", said)
    assert float(level) <= 2.0, said


@needs_systemd
def test_systemd_understands_every_line_of_it(unit: Path) -> None:
    said = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")


UNITS = "etc/systemd/system"


def run(*words: object) -> int:
    return cli.main(["systemd", *map(str, words)])


@pytest.fixture
def install(told: Told, tmp_path: Path) -> Told:
    """Below a folder."""
    return partial(told, "install", "--root", tmp_path, "--program", PROGRAM)


def test_installing_writes_unit_configuration_and_key_once(tmp_path: Path, install: Told) -> None:
    said, path = install(), tmp_path / UNITS / "lengthwise.service"
    unit, folder = path.read_text(), tmp_path / "etc/lengthwise"
    assert f"ExecStart={PROGRAM} serve --config /etc/lengthwise/config.toml\n" in unit and "Type=notify" in unit
    keys, config = folder / "api-keys", folder / "config.toml"
    key = keys.read_text()
    assert len(key.strip()) == 64 and keys.stat().st_mode & 0o777 == 0o600
    config.write_text("port = 9000\n")
    assert key.strip() not in said + install()
    assert (keys.read_text(), config.read_text()) == (key, "port = 9000\n")
    path.write_text("[Service]\nExecStart=/bin/false\n")
    assert "--force" in install(code=1), "a unit that differs is replaced when meant"
    install("--force")
    assert path.read_text() == unit


def test_a_gateway_has_a_unit_and_a_configuration_of_its_own(tmp_path: Path, install: Told) -> None:
    install()
    install("--gateway")
    unit, config = tmp_path / UNITS / "lengthwise-gateway.service", tmp_path / "etc/lengthwise/gateway.toml"
    assert {path.name for path in unit.parent.iterdir()} == {"lengthwise.service", unit.name}
    text = unit.read_text()
    assert f"ExecStart={PROGRAM} gateway --config /etc/lengthwise/gateway.toml\n" in text
    assert "RuntimeDirectory=lengthwise-gateway\n" in text and "/gateway.sqlite3\n" in text
    assert not re.search("nvidia|cuda", text, re.I) and "DevicePolicy=closed\n" in text
    assert load_settings(GatewayConfig, {}, {}, config).urls == ["http://127.0.0.1:8001/v1"]
    config.write_text('backend = ["http://127.0.0.1:9/v1"]\nshutdown_timeout = 90\n')
    install("--gateway", "--force")
    assert "TimeoutStopSec=120\n" in unit.read_text()


HIDDEN = ["--program=/home/me/lengthwise", "--program=/tmp/lengthwise", "--config=/var/tmp/config.toml"]


@pytest.mark.parametrize("flag", HIDDEN)
def test_what_the_service_could_not_see_is_refused(
    tmp_path: Path, flag: str, install: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "/opt" in install(flag, code=1)
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["systemd", "print", flag]) == 0
    assert "warning: " in capsys.readouterr().err


def test_systemd_waits_longer_than_the_drain_may_take(tmp_path: Path, told: Told) -> None:
    config = tmp_path / "config.toml"
    config.write_text("shutdown_timeout = 300\n")
    printed = told("print", "--config", config)
    assert "\nTimeoutStopSec=330\n" in printed and f"--config {config}\n" in printed


def test_names_with_spaces_and_percent_signs_stay_whole() -> None:
    text = write_unit(Path("/opt/my models/100%/lengthwise"))
    assert "ExecStart=/opt/my\\x20models/100%%/lengthwise serve " in text


def test_instances_of_a_template_share_models_and_keys(tmp_path: Path, install: Told) -> None:
    said = install("--template")
    text = (tmp_path / "etc/systemd/system/lengthwise@.service").read_text()
    assert set(re.findall(r".*%i.*", text)) == {
        "Description=Lengthwise %i, an LLM inference server that schedules by length",
        f"ExecStart={PROGRAM} serve --config /etc/lengthwise/%i.toml",
        "Environment=LENGTHWISE_JOURNAL=/var/lib/lengthwise/%i.sqlite3",
        "RuntimeDirectory=lengthwise/%i",
    }
    assert [path.name for path in (tmp_path / "etc/lengthwise").iterdir()] == ["api-keys"]
    assert "etc/lengthwise/NAME.toml, then `systemctl enable --now lengthwise@NAME.service`" in said
    assert "--config is for one server" in install("--template", "--config", "/etc/other.toml", code=2)
