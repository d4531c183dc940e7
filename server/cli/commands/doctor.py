"""`lengthwise doctor`: whether `lengthwise serve` with the same settings would start here, a line for each part of it.

A check returns what it found, and raises UserError, whose message has the remedy, where the server would not start.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from types import MappingProxyType

from models.catalog.catalog import Catalog, default_cache
from models.catalog.checkpoint import read_need
from models.errors import UserError
from models.options import Subparsers
from server.cli.config import GROUPS, ServeConfig, read_config
from server.cli.settings import add_settings
from server.composition.cache_paths import journal_path, require_writable
from server.process.port import taken


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    parser = subparsers.add_parser(
        "doctor",
        help="tell what would keep the server from starting, and what to do about it",
        description="Check what `lengthwise serve` needs: the port, the devices, the model, the memory, the journal "
        "and the predictor, with flags, variables and --config file as for `serve`. Nothing is fetched or loaded. "
        "The exit code is 1 where something would fail.",
    )
    add_settings(parser, GROUPS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line for each check; returns the exit code."""
    config = read_config(args)
    failed = False
    for name, check in CHECKS.items():
        try:
            print(f"ok    {name:<10} {check(config)}", flush=True)
        except UserError as error:
            failed = True
            print(f"FAIL  {name:<10} {error}", flush=True)
    return int(failed)


def _check_port(config: ServeConfig) -> str:
    with taken(config.host, config.port, config.uds):
        return f"{config.uds or f'{config.host}:{config.port}'} is free"


def _check_devices(config: ServeConfig) -> str:
    import torch

    from server.composition.devices import cores, cuda_devices, device_name, threads

    if devices := cuda_devices(config):
        return ", ".join(f"{one}: {device_name(torch.device(one))}" for one in devices)
    return f"cpu: {device_name(torch.device('cpu'))}, {threads(config)} of {cores()} cores for an executor"


def _check_model(config: ServeConfig) -> str:
    folder = Catalog().find(config.model)
    if folder is not None:
        return f"{config.model} is in {folder}"
    return f"{config.model} is fetched, or converted, at the first start"


def _check_memory(config: ServeConfig) -> str:
    import torch

    from models.network.loader import choose_dtype
    from server.composition.devices import cuda_devices, free_bytes, hush_transformers, require_memory

    hush_transformers()
    device = torch.device(next(iter(cuda_devices(config)), "cpu"))
    free = f"{free_bytes(device) / 2**30:.1f} GiB are free"
    if (folder := Catalog().find(config.model)) is None:
        return f"{free}; what the model needs is known once it is here"
    need, dtype = read_need(folder), choose_dtype(config.dtype, device)
    require_memory(need.weights, dtype, device, config.model)
    told = need.tell(dtype.itemsize, config.expected_slots, config.max_model_len)
    return f"{free}; {told}, of which the server takes what fits"


def _check_journal(config: ServeConfig) -> str:
    if config.no_journal:
        return "nothing is recorded (--no-journal)"
    path = journal_path(default_cache(), config.journal)
    require_writable(path)
    return f"{path} can be written"


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


CHECKS: Mapping[str, Callable[[ServeConfig], str]] = MappingProxyType(
    {
        "port": _check_port,
        "devices": _check_devices,
        "model": _check_model,
        "memory": _check_memory,
        "journal": _check_journal,
        "predictor": _check_predictor,
    }
)
"""Checks by the name of what they look at, in the order in which the server needs it."""
