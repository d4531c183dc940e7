"""Two nodes behind Ray Serve, started as a user would: `make test-ray` installs ray and runs this."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from http.client import HTTPConnection
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from scheduler.wait_estimate.node_router import Job, NodeLoad, WorkRouter
from scheduler.waiting.prices import Prices
from server.config import ServeConfig
from server.deploy.settings import Servers
from server.keys import Keyring
from tests.live_server import ready_url
from tests.tiny import build

pytest.importorskip("ray", reason="needs lengthwise[ray]")
pytestmark = pytest.mark.timeout(400)

LONG: dict[str, Any] = {"prompt": "the quick brown", "max_tokens": 1900, "ignore_eos": True}
SHORT: dict[str, Any] = {"prompt": "the quick brown", "max_tokens": 3, "ignore_eos": True}


@dataclass(frozen=True)
class Cluster:
    """A cluster that listens."""

    port: int
    process: subprocess.Popen[str]

    def ask(self, body: dict[str, Any], **headers: str) -> tuple[int, bytes]:
        connection, answer = self.open(body, **headers)
        with closing(connection):
            return answer.status, answer.read()

    def open(self, body: dict[str, Any], **headers: str) -> tuple[HTTPConnection, Any]:
        """A call whose answer has begun."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Content-Type": "application/json", **headers}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return connection, connection.getresponse()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = build(tmp_path_factory.mktemp("model"), context=2048)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    quiet = ("--no-journal", "--files-size", "0", "--log-level", "warning", "--strategy", "baton-pd")
    flags = ("ray", "--nodes", "2", "--cpus", "0.1", "--port", str(port), "--", str(folder), *quiet)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "lengthwise", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RAY_USAGE_STATS_ENABLED": "0"},
    ) as process:
        assert process.stdout is not None
        ready_url(line for line in process.stdout if "with 2 nodes" in line or "error" in line)
        drained = threading.Thread(target=process.stdout.read)
        drained.start()  # Ray says much, and would wait for a reader
        yield Cluster(port, process)
        process.terminate()
        drained.join()
    assert process.returncode == 0


@dataclass(frozen=True)
class Server:
    """A node's server, the replica that holds it, and where it listens."""

    pid: int
    replica: int
    socket: str

    def running(self) -> int:
        """Requests that it runs."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.socket)
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return int(json.loads(connection.makefile("rb").read().partition(b"\r\n\r\n")[2])["requests_running"])


def servers() -> list[Server]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "server.worker_process" in words:
            found.append(Server(process.pid, int(words[words.index("server.worker_process") + 1]), words[-1]))
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended, though the one that has to note it may not have done so yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_requests_are_passed_on(cluster: Cluster) -> None:
    status, body = cluster.ask(SHORT)
    assert status == 200 and json.loads(body)["usage"]["completion_tokens"] == 3
    status, body = cluster.ask({"max_tokens": 3})
    assert status == 400 and "prompt" in json.loads(body)["error"]["message"]


def test_only_this_machines_names_and_own_pages_reach_it(cluster: Cluster) -> None:
    """A page whose domain was made to mean 127.0.0.1 had its calls answered, and the server's own page had not."""
    status, body = cluster.ask(SHORT, Host="evil.example", Origin="http://evil.example")
    assert status == 421 and json.loads(body)["error"]["code"] == "host_not_allowed"
    host = f"localhost:{cluster.port}"
    assert cluster.ask(SHORT, Host=host, Origin=f"http://{host}")[0] == 200
    assert cluster.ask(SHORT, Host=host, Origin="http://evil.example")[0] == 403


def test_only_replicas_which_want_a_token_listen_beyond_loopback(cluster: Cluster) -> None:
    """Ray listened on 14 ports of all interfaces; a replica's own address cannot be chosen."""
    family = [psutil.Process(cluster.process.pid), *psutil.Process(cluster.process.pid).children(recursive=True)]
    found = {
        (each, ip_address(one.laddr.ip.removeprefix("::ffff:")).is_loopback)
        for each in family
        for one in each.net_connections("inet")
        if one.status == "LISTEN"
    }
    assert len(found) > 2
    beyond = [each for each, is_loopback in found if not is_loopback]
    assert all(each.name().startswith("ray::ServeReplica") for each in beyond)
    assert all(each.environ()["RAY_AUTH_MODE"] == "token" for each in beyond)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(cluster: Cluster) -> None:
    """One of 600 MB took 2.4 GB."""
    connection = HTTPConnection("127.0.0.1", cluster.port, timeout=60)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Length", str(10**12))
    connection.endheaders(b"{")
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_the_front_reads_no_more_than_it_may_and_nothing_without_a_key() -> None:
    from server.deploy.ray import RayFront

    read = 0

    async def stream() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 100
            yield b"x" * 100

    front = RayFront(None, Servers((), None, ServeConfig(max_body_bytes=1000), Keyring(["the-key-of-the-front"]), None))
    call: Any = SimpleNamespace(headers={}, url=SimpleNamespace(path="/v1/completions"), stream=stream)
    assert (await front(call)).status_code == 401 and read == 0
    call.headers = {"Authorization": "Bearer the-key-of-the-front"}
    assert (await front(call)).status_code == 413 and read == 1100


def test_streams_are_passed_on_as_they_come(cluster: Cluster) -> None:
    connection, answer = cluster.open({**LONG, "stream": True})
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.readline().startswith(b"data: {")
    connection.close()
    status, body = cluster.ask({**SHORT, "stream": True})
    assert status == 200 and body.endswith(b"data: [DONE]\n\n")


def test_a_call_whose_client_goes_away_is_cancelled(cluster: Cluster) -> None:
    connection, _ = cluster.open({**LONG, "stream": True})
    while not any(server.running() for server in servers()):
        pass
    connection.close()
    while any(server.running() for server in servers()):
        pass


def test_only_calls_of_a_killed_replica_are_lost(cluster: Cluster) -> None:
    plain: list[tuple[int, bytes]] = []
    threads = [threading.Thread(target=lambda: plain.append(cluster.ask(LONG))) for _ in range(4)]
    for thread in threads:
        thread.start()
    streams = [cluster.open({**LONG, "stream": True}) for _ in range(4)]
    both = servers()
    while sum(server.running() for server in both) < 8:
        pass
    killed = max(both, key=lambda server: server.running())
    had = killed.running()
    os.kill(killed.replica, signal.SIGKILL)
    assert [cluster.ask(SHORT)[0] for _ in range(8)] == [200] * 8
    ends = [answer.read() for _, answer in streams]
    for connection, _ in streams:
        connection.close()
    for thread in threads:
        thread.join()
    lost = [end for end in ends if b'"code":"node_lost"' in end]
    assert all(end.endswith(b"[DONE]\n\n") for end in ends if end not in lost)
    assert {status for status, _ in plain} <= {200, 503}
    assert len(lost) + sum(status == 503 for status, _ in plain) == had
    while not is_gone(killed.pid):
        pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, as it is imported
def test_a_slow_replica_gets_calls_by_seconds_and_not_by_count() -> None:
    """What replicas tell reaches the rule: one of a third of the speed gets a quarter."""
    from server.deploy.ray import ByWork

    router = ByWork.__new__(ByWork)  # what Ray needs of it is tried by the cluster
    router._work = WorkRouter()
    prices = Prices(prompt=0.1, entry=0.0, token=1.0, cell=0.0, unit=0.5)
    loads = {"fast": NodeLoad(time.time(), 0.0, prices), "slow": NodeLoad(time.time(), 0.0, replace(prices, unit=1.5))}
    replicas: list[Any] = [
        SimpleNamespace(replica_id=name, routing_stats=json.loads(json.dumps(asdict(load))))
        for name, load in loads.items()
    ]

    async def choose() -> str:
        pending: Any = SimpleNamespace(kwargs={"job": Job(20, 4.0)}, routing_context=SimpleNamespace())
        ranked = await router.choose_replicas(replicas, pending)
        return str(ranked[0][0].replica_id)

    chosen = [asyncio.run(choose()) for _ in range(100)]
    assert chosen.count("fast") == pytest.approx(75, abs=2)


def test_calls_that_run_end_before_the_cluster_does(cluster: Cluster) -> None:
    """The proxy was ended first, and all calls with it."""
    connection, answer = cluster.open({**LONG, "stream": True})
    assert answer.readline().startswith(b"data: {")
    cluster.process.terminate()
    assert answer.read().endswith(b"data: [DONE]\n\n")
    connection.close()
