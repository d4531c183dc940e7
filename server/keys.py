"""API keys, kept as digests and never shown."""

import logging
import math
import stat
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from types import MappingProxyType

from server.settings import ConfigError, read_text

log = logging.getLogger(__name__)

CREDENTIAL = "api-keys"  # systemd credential (LoadCredential=api-keys:FILE), like --api-key-file

SHORT = 16  # shorter keys can be guessed


class Keyring:
    """None: open to all."""

    def __init__(self, keys: Iterable[str] = (), weights: Mapping[str, float] = MappingProxyType({})) -> None:
        """`weights` default to 1."""
        given = {_digest(key): weights.get(key, 1.0) for key in keys}
        self._digests = tuple(given)
        self.shares = {_holder(digest): weight for digest, weight in given.items()}  # by holder, for fair sharing

    def replace(self, other: "Keyring") -> None:
        self._digests, self.shares = other._digests, other.shares

    def __len__(self) -> int:
        return len(self._digests)

    def holder(self, presented: str) -> str | None:
        """First digits of the digest, or None; constant time."""
        digest = _digest(presented)
        found = [known for known in self._digests if compare_digest(digest, known)]
        return _holder(found[0]) if found else None


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _holder(digest: bytes) -> str:
    return digest.hex()[:8]


def load_keys(given: Sequence[str], file: Path | None, environ: Mapping[str, str]) -> Keyring:
    """Raises ConfigError, also for an empty source."""
    keys = read_keys(given, file, environ)
    if file is not None and file.stat().st_mode & stat.S_IROTH:
        log.warning("%s can be read by everybody on this machine: chmod 600 it", file)
    if any(len(key) < SHORT for key in keys):
        log.warning("an API key has fewer than %d characters: make keys with `openssl rand -hex 32`", SHORT)
    return Keyring(keys, keys)


def read_keys(given: Sequence[str], file: Path | None, environ: Mapping[str, str]) -> dict[str, float]:
    keys = {_check(key, "--api-key"): 1.0 for key in given}
    if file is not None:
        keys |= read_key_file(file, f"--api-key-file {file}")
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if folder and (credential := Path(folder) / CREDENTIAL).exists():
        keys |= read_key_file(credential, f"the credential {CREDENTIAL}")
    return keys


def read_key_file(file: Path, source: str) -> dict[str, float]:
    """One a line with optional weight; # comments."""
    stripped = [(number, line.strip()) for number, line in enumerate(read_text(file, source).splitlines(), 1)]
    keys = dict(_read_line(line, f"{source}, line {number}") for number, line in stripped if line and line[0] != "#")
    if not keys:
        raise ConfigError(f"{source} holds no key: write one a line")
    return keys


def _read_line(line: str, source: str) -> tuple[str, float]:
    key, *rest = line.split()
    try:
        weight = float(*rest) if rest else 1.0
    except (TypeError, ValueError):
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ConfigError(f"{source}: behind a key may stand its weight, a number above 0, and nothing else")
    return _check(key, source), weight


def _check(key: str, source: str) -> str:
    if not key or not all("!" <= character <= "~" for character in key):
        raise ConfigError(f"{source}: a key consists of printable ASCII characters, without spaces")
    return key
