"""The server's certificate."""

from __future__ import annotations

import ssl
from pathlib import Path

from server.cli.settings import ConfigError


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The context of a server for TLS 1.2 and later; None without a certificate. Raises ConfigError."""
    if certificate is None:
        if key is not None:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_refuse)
    except OSError as error:  # ssl.SSLError among them
        raise ConfigError(_explain(error, certificate, key)) from None
    return context


def _refuse() -> str:
    """Give no password, as a service has no terminal to ask for one."""
    return ""


def _explain(error: OSError, certificate: Path, key: Path | None) -> str:
    files = str(certificate) if key is None else f"{certificate} and {key}"
    reason = getattr(error, "reason", None) or error.strerror or "unknown reason"
    remedy = "give PEM files, the certificate's chain and its key without a password, that this user may read"
    return f"--ssl-certfile/--ssl-keyfile: {files} cannot be used ({reason}): {remedy}"
