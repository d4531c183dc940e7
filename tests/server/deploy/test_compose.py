"""The compose file and what stands around the server there: each configuration is checked by its own program, and
nginx and Prometheus are run before a live server."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from server.access import Access
from server.cli.main import build_parser
from server.http.front import Front
from server.keys import Keyring
from tests.server.counted import counted
from tests.server.fakes import ANSWER
from tests.server.live import Live, chat_body, live_server, parse_events, text_of

DEPLOY = Path(__file__).parents[3] / "server/deploy"
MONITORING = DEPLOY / "monitoring"
COMPOSE = DEPLOY / "compose.yaml"
KEY = "a-key-of-this-server"

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (apt: prometheus)")
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="needs nginx (apt: nginx-light)")


def services() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml"])
def test_compose_files_follow_the_compose_specification(name: str) -> None:
    compose_spec = pytest.importorskip("compose_spec", reason="needs compose-spec")
    found = compose_spec.PyCompose.from_yaml((DEPLOY / name).read_text("utf-8"))
    assert set(found.service_names()) <= services().keys()


def test_every_file_that_compose_mounts_is_there_and_every_service_that_files_name() -> None:
    mounts = [one for service in services().values() for one in service["volumes"] if one.startswith(".")]
    assert len(mounts) == 6 and all((DEPLOY / mount.partition(":")[0]).is_file() for mount in mounts)
    named = {
        re.search(pattern, (DEPLOY / name).read_text("utf-8"))[1]  # type: ignore[index]
        for name, pattern in {
            "nginx.conf": r"server (\w+):8000;",
            "monitoring/prometheus.yml": r'"(\w+):8000"',
            "monitoring/datasource.yaml": r"http://(\w+):9090",
        }.items()
    }
    assert named == {"lengthwise", "prometheus"} and named <= services().keys()


def test_only_the_proxy_and_the_watchers_listen_and_only_on_this_machine() -> None:
    ports = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert ports.keys() == services().keys() - {"lengthwise"}
    assert all(port.startswith("127.0.0.1:") for listed in ports.values() for port in listed)


def test_the_service_starts_the_program_with_flags_that_there_are_and_has_time_to_drain() -> None:
    service = services()["lengthwise"]
    config = vars(build_parser().parse_args([re.sub(r"\$\{MODEL:-(.+)\}", r"\1", word) for word in service["command"]]))
    assert config["host"] == "0.0.0.0"
    assert int(service["stop_grace_period"].removesuffix("s")) > config["shutdown_timeout"]


@pytest.fixture
def proxy(tmp_path: Path, live: Live) -> Iterator[Path]:
    """nginx with the configuration of the documents before a live server; the socket that it listens on."""
    assert NGINX is not None
    socket, main = tmp_path / "socket", tmp_path / "main.conf"
    own = (DEPLOY / "nginx.conf").read_text("utf-8")
    own = own.replace("server lengthwise:8000;", f"server 127.0.0.1:{live.port};")
    (tmp_path / "own.conf").write_text(own.replace("listen 80;", f"listen unix:{socket};"))
    folders = "".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    folders += f"client_body_temp_path {tmp_path}/body;"
    http = f"access_log off; {folders} include {tmp_path}/own.conf;"
    user = "user root;" if os.geteuid() == 0 else ""
    main.write_text(f"{user} pid {tmp_path}/pid; error_log {tmp_path}/log; events {{}} http {{ {http} }}\n")
    command = [NGINX, "-e", f"{tmp_path}/log", "-c", str(main)]
    subprocess.run([*command, "-t"], check=True)
    subprocess.run(command, check=True)  # returns once it listens
    yield socket
    subprocess.run([*command, "-s", "stop"], check=True)


@needs_nginx
async def test_tokens_pass_through_nginx_as_they_come(live: Live, proxy: Path) -> None:
    live.dispatcher.pause = 3
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(proxy))) as session,
        session.post("http://localhost/v1/chat/completions", json=chat_body(stream=True)) as response,
    ):
        seen = b""
        while text_of(parse_events(seen + b"data: [DONE]\n\n")) != "Gr":
            seen += await response.content.readuntil(b"\n\n")
        live.dispatcher.release()  # which the proxy need not wait for
        seen += await response.content.read()
    assert text_of(parse_events(seen)) == ANSWER
    assert re.fullmatch("[0-9a-f]{32}", response.headers["X-Request-Id"])  # as nginx makes them


@needs_promtool
def test_promtool_takes_configuration_and_rules_and_each_alert_fires_when_it_should() -> None:
    for words in (
        ["check", "config", "--syntax-only", str(MONITORING / "prometheus.yml")],
        ["check", "rules", str(MONITORING / "alerts.yml")],
        ["test", "rules", str(Path(__file__).with_name("alerts_test.yml"))],
    ):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_cases() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    well, all_at_once = yaml.safe_load(Path(__file__).with_name("alerts_test.yml").read_text("utf-8"))["tests"]
    names = [rule["alert"] for rule in rules]
    assert [case["alertname"] for case in well["alert_rule_test"]] == names
    (fired,) = all_at_once["promql_expr_test"]
    assert re.findall(r'alertname="(\w+)"', str(fired["exp_samples"])) == names


class Prometheus:
    """A Prometheus that scrapes a server with keys as the compose file's does."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def ask(self, path: str, **params: str) -> Any:
        async with self._session.get(f"{self._url}/api/v1/{path}", params=params) as response:
            told = await response.json()
        assert told["status"] == "success", (params, told)
        return told["data"]


@pytest.fixture
async def prometheus(tmp_path: Path) -> AsyncIterator[Prometheus]:
    front, metrics = Front(access=Access(Keyring([KEY]))), (await counted()).metrics
    async with live_server(front=front, metrics=metrics) as live:
        config = (MONITORING / "prometheus.yml").read_text("utf-8").replace("lengthwise:8000", f"127.0.0.1:{live.port}")
        config = config.replace("/run/secrets/api-keys", str(tmp_path / "key")).replace("scrape_interval: 5s", "")
        (tmp_path / "prometheus.yml").write_text(config.replace("global:", "global:\n  scrape_interval: 500ms"))
        (tmp_path / "key").write_text(KEY + "\n")
        shutil.copy(MONITORING / "alerts.yml", tmp_path)
        subprocess.run(["promtool", "check", "config", str(tmp_path / "prometheus.yml")], check=True)
        flags = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data")
        process = await asyncio.create_subprocess_exec(
            "prometheus", *flags, "--web.listen-address=127.0.0.1:0", stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        said = b""
        while not (found := re.search(rb"address=(127\.0\.0\.1:[1-9]\d*)", said)) or b"ready to receive" not in said:
            said += (line := await process.stderr.readline())
            assert line, said.decode()
        rest = asyncio.create_task(process.stderr.read())
        yield Prometheus(live.session, f"http://{found[1].decode()}")
        process.send_signal(signal.SIGTERM)
        await rest
        assert await process.wait() == 0


@needs_prometheus
async def test_prometheus_scrapes_a_server_and_understands_the_dashboards_expressions(prometheus: Prometheus) -> None:
    while not (await prometheus.ask("query", query='up{job="lengthwise"} == 1'))["result"]:
        await asyncio.sleep(0.05)
    assert (await prometheus.ask("query", query="lengthwise:info"))["result"]
    (group,) = (await prometheus.ask("rules"))["groups"]
    assert all(rule["health"] in ("ok", "unknown") for rule in group["rules"]) and len(group["rules"]) > 6
    board = (MONITORING / "lengthwise.json").read_text("utf-8")
    assert (queries := re.findall(r'"expr": ("(?:[^"\\]|\\.)*")', board))
    for text in queries:
        query = re.sub(r"\$(model|job)", ".*", json.loads(text).replace("$__rate_interval", "1m"))
        await prometheus.ask("query", query=query)
