"""Certificates for 127.0.0.1, made with the openssl program."""

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, name: str = "certificate") -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with the openssl program, which is not here")
    files = folder / f"{name}.pem", folder / f"{name}-key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    outputs = ["-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run([*command, "-days", "2", *subject, *outputs], check=True, capture_output=True)
    return files
