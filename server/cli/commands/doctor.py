"""`lengthwise doctor`: what would keep `lengthwise serve` from starting; checks raise UserError with the remedy."""

import os
from collections.abc import Callable, Iterator, Mapping

from models.catalog.catalog import Catalog, default_cache
from models.catalog.checkpoint import read_need
from models.errors import UserError
from models.machine import usable_cores
from models.options import Subparsers
from server.cache_paths import journal_path, require_writable
from server.config import NO_EMBEDDINGS, ServeConfig
from server.http.port import taken
from server.keys import read_keys
from server.settings import add_configured

Checks = Mapping[str, Callable[[ServeConfig], str]]


def add_parser(subparsers: Subparsers) -> None:
    add_configured(subparsers, "doctor", ServeConfig, run)


def run(config: ServeConfig) -> int:
    """Tell what would keep the server from starting, and what to do about it.

    Checks what `lengthwise serve` needs: the port, the devices, the model, the memory, the journal and the predictor,
    with flags, variables and --config file as for `serve`. Nothing is fetched or loaded. The exit code is 1 where
    something would fail.

    Example: lengthwise doctor
    """
    failed = False
    for name, told in _outcomes(config, {**EARLY, **LATER}):
        failed |= isinstance(told, UserError)
        print(f"{'FAIL' if isinstance(told, UserError) else 'ok  '}  {name:<11} {told}", flush=True)
    return int(failed)


def _outcomes(config: ServeConfig, checks: Checks) -> Iterator[tuple[str, str | UserError]]:
    for name, check in checks.items():
        try:
            yield name, check(config)
        except UserError as error:
            yield name, error


def require_startable(config: ServeConfig) -> None:
    found = [told for _, told in _outcomes(config, EARLY) if isinstance(told, UserError)]
    if len(found) == 1:
        raise found[0]
    if found:
        worst = max(found, key=lambda error: error.exit_code)
        raise type(worst)("\n  ".join(["the server cannot start:", *map(str, found)]))


def _check_journal(config: ServeConfig) -> str:
    if config.no_journal:
        return "nothing is recorded (--no-journal)"
    require_writable(config.journal)
    return f"requests are recorded in {journal_path(default_cache(), config.journal)}"


def _check_keys(config: ServeConfig) -> str:
    keys = read_keys(config.api_key, config.api_key_file, os.environ)
    return f"{len(keys)} API keys, of which each call must have one" if keys else "none: calls need no API key"


def _check_certificate(config: ServeConfig) -> str:
    if config.ssl_certfile is None and config.ssl_keyfile is None:
        return "none: plain HTTP is spoken"
    from server.http.front import tls_context

    tls_context(config.ssl_certfile, config.ssl_keyfile)
    return f"{config.ssl_certfile} can be used"


def _check_model(config: ServeConfig) -> str:
    if config.embedding_model is not None and config.embedding_model != NO_EMBEDDINGS:
        Catalog().find(config.embedding_model)
    folder = Catalog().find(config.model)
    return f"{config.model} is " + (f"in {folder}" if folder else "fetched, or converted, at the first start")


def _check_port(config: ServeConfig) -> str:
    with taken(config.host, config.port, config.uds):  # held again once torch is imported
        return f"{config.uds or f'{config.host}:{config.port}'} is free"


def _check_devices(config: ServeConfig) -> str:
    import torch

    from server.composition.devices import CPU, cuda_devices, device_name, threads

    if devices := cuda_devices(config):
        return ", ".join(f"{one}: {device_name(torch.device(one))}" for one in devices)
    return f"cpu: {device_name(CPU)}, {threads(config)} of {usable_cores()} cores for an executor"


def _check_memory(config: ServeConfig) -> str:
    from models.network.model_config import choose_dtype
    from server.composition.devices import first_device, free_gib, hush_transformers, require_memory

    hush_transformers()
    device = first_device(config)
    free = f"{free_gib(device):.1f} GiB are free"
    if (folder := Catalog().find(config.model)) is None:
        return f"{free}; what the model needs is known once it is here"
    need = read_need(folder)
    require_memory(config, need.weights, device)
    told = need.tell(choose_dtype(config.dtype, device).itemsize, config.expected_slots, config.max_model_len)
    return f"{free}; {told}, of which the server takes what fits"


def _check_predictor(config: ServeConfig) -> str:
    from server.lengths.predictors import KINDS, choose_predictor

    length = choose_predictor(config)
    if length not in KINDS:
        return f"{length} needs no files"
    if (path := KINDS[length].path(default_cache(), config.model)).exists():
        return f"{length} in {path}"
    if KINDS[length].learns:
        return f"{length} is not trained yet and learns from what is served"
    raise UserError(f"{length} is not trained: run `lengthwise train --predictor {length}`")


EARLY: Checks = {
    "journal": _check_journal,
    "keys": _check_keys,
    "certificate": _check_certificate,
    "model": _check_model,
    "port": _check_port,
}  # without heavy imports

LATER: Checks = {"devices": _check_devices, "memory": _check_memory, "predictor": _check_predictor}
