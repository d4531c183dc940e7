"""What `lengthwise serve` can be told. The fields make the flags, the LENGTHWISE_ variables and the TOML keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.catalog.catalog import DEFAULT_EMBEDDER, DEFAULT_MODEL, EMBEDDER_MAX_TOKENS
from models.network.generation_config import check_overrides
from models.network.quantization import QUANTIZATIONS
from server.cli.settings import ConfigError, gather, option, settings

__all__ = ["ConfigError", "ServeConfig", "load_config"]


def _strategies() -> Iterable[str]:
    from scheduler.strategy import STRATEGIES

    return STRATEGIES


def _lengths() -> Iterable[str]:
    from scheduler.strategy import Length

    return tuple(Length)


def _instruction_splits() -> Iterable[str]:
    from server.lengths.instruction import InstructionSplit

    return tuple(InstructionSplit)


def _dtypes() -> Iterable[str]:
    return ("auto", "float32", "bfloat16", "float16")


def _quantizations() -> Iterable[str]:
    return ("auto", *QUANTIZATIONS)


def _devices() -> Iterable[str]:
    return ("auto", "cpu", "cuda")


def _log_levels() -> Iterable[str]:
    return ("debug", "info", "warning", "error")


def _log_formats() -> Iterable[str]:
    return ("human", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Durations are seconds, sizes are bytes unless the name says otherwise."""

    model: str = option(
        DEFAULT_MODEL, "what to serve: a name of `lengthwise models`, a folder, a .gguf file, a hub id", positional=True
    )
    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0 takes a free one", low=0, high=65535)
    served_model_name: tuple[str, ...] = option(
        (), "names the API knows the model by, the first of them in answers; default: the model's own"
    )
    dtype: str = option("auto", "type of the weights; auto: bfloat16 where it is fast, else float32", choices=_dtypes)
    quantization: str = option(
        "auto",
        "how a CPU keeps the weights; auto: 16-bit weights stay so where the CPU multiplies in float32, else none",
        choices=_quantizations,
    )
    device: str = option("auto", "where to run; auto: CUDA where there is a device, else the CPU", choices=_devices)
    executors: int = option(
        0, "executor threads; 0: one per CUDA device, else one; on a CPU they share its cores", low=0, high=1024
    )
    max_model_len: int | None = option(
        None, "longest prompt plus answer, in tokens; default: the model's context", low=2
    )
    max_num_seqs: int = option(32, "sequences that run at a time on one executor", low=1, high=65536)
    max_num_batched_tokens: int = option(512, "prompt tokens that are read between two decode steps", low=1)
    kv_cache_memory: float | None = option(
        None, "memory for keys and values per executor, in GiB; default: what the device leaves", low=0.001
    )
    swap_space: float | None = option(
        None,
        "host memory for keys and values of rows that wait, in GiB; default: 4, or a quarter of what is free if less",
        low=0,
    )
    gpu_memory_utilization: float = option(
        0.9, "share of a CUDA device's memory to use, weights included", low=0.01, high=1
    )
    strategy: str = option("lengthwise", "how requests are ordered, batched and placed", choices=_strategies)
    prefill_ahead: int | None = option(
        None, "prompts that may be read ahead of a free slot; default: as the strategy has it", low=0
    )
    max_batch_size: int | None = option(
        None, "rows of a batch that nobody joins, for strategies with such; default: --max-num-seqs", low=1, high=65536
    )
    batch_wait_timeout: float = option(
        0.0, "how long the first request of such a batch waits for it to fill up, for dynamic batching", low=0
    )
    aging_factor: float = option(
        10.0, "times its predicted time after which a request is no longer passed, where the shortest goes first", low=0
    )
    overtaking_factor: float = option(
        0.8,
        "how much of what waits may be served before a request though it came later, where the cheapest goes first",
        low=0,
    )
    outlier_factor: float = option(
        3.0, "times --overtaking-factor for the most expensive one of 200 requests; 1: as for all others", low=1
    )
    slice_length: int = option(128, "decode steps of a slice, for strategies that slice", low=1)
    min_interval: float | None = option(
        None, "least seconds between two arrangements of sliced batches; default: a median slice", low=0
    )
    interval_factor: float = option(
        0.5, "part of the least loaded executor's work that may pass before batches are arranged again", low=0, high=1
    )
    recompute: bool = option(
        False, "read prompts again after each slice or pause, instead of keeping keys and values in host memory"
    )
    length_predictor: str | None = option(
        None, "who predicts how long answers become; default: as the strategy has it", choices=_lengths
    )
    embedder: str = option(DEFAULT_EMBEDDER, "sentence embedder of the forest and of the length cache")
    embedder_max_tokens: int = option(EMBEDDER_MAX_TOKENS, "tokens of a text that it reads", low=1)
    instruction_split: str = option(
        "system", "where the instruction of a prompt without system message is", choices=_instruction_splits
    )
    prediction_timeout: float = option(
        0.01, "how long a request that has to queue is held back for its predicted length", low=0
    )
    length_cache_size: int | None = option(
        None,
        "prompts whose near-duplicates need no predictor; 0: no cache; default: 4096 with the proxy, else 0",
        low=0,
    )
    learning_interval: float = option(180.0, "how often the forest learns from what was served; 0: never", low=0)
    journal: Path | None = option(None, "where to record what has ended; default: in the cache folder")
    no_journal: bool = option(False, "record nothing, and learn nothing")
    journal_prompts: bool = option(False, "record prompts as well, not only the numbers that were made of them")
    default_max_tokens: int | None = option(
        None,
        "tokens of a chat's answer without max_tokens; default: what the context holds, 1024 for smollm2-135m-instruct",
        low=1,
    )
    override_generation_config: dict[str, Any] | None = option(
        None,
        'fields in place of the model\'s own generation_config.json, as {"temperature": 0.2}',
        check=check_overrides,
    )
    stop_repetition: bool = option(
        False, "end an answer that repeats the same 64 tokens or fewer until they fill 256, with stop_reason repetition"
    )
    chat_template: Path | None = option(None, "file with a Jinja chat template; default: the model's own")
    seed: int | None = option(
        None,
        "makes the seeds of requests that bring none repeatable; default: new ones at each start",
        low=0,
        high=2**63 - 1,
    )
    enforce_eager: bool = option(False, "decode without CUDA graphs")
    allow_replay: bool = option(
        False, "let requests bring the length of their answer, replay_tokens: for benchmarks, not for users"
    )
    max_num_queued_reqs: int = option(
        4096, "requests that may wait; a call that comes when so many do is refused with 429 and Retry-After", low=0
    )
    max_num_queued_tokens: int | None = option(
        None, "the same in tokens, prompts and answers as predicted, or else as long as they may be", low=1
    )
    api_key: tuple[str, ...] = option(
        (), "keys of which a caller must bring one; others can read them here, so better use a file", secret=True
    )
    api_key_file: Path | None = option(None, "file with such keys, one a line")
    requests_per_minute: int | None = option(None, "generating requests that a key may make in any minute", low=1)
    max_concurrent_requests: int | None = option(None, "generating requests that a key may have at a time", low=1)
    allowed_origins: tuple[str, ...] = option((), "origins whose pages may call from a browser; *: all")
    allowed_methods: tuple[str, ...] = option(("*",), "methods that such pages may use")
    allowed_headers: tuple[str, ...] = option(("*",), "headers that such pages may send")
    allowed_hosts: tuple[str, ...] = option(
        (), "names, beside this machine's own, that a server without keys answers as on a loopback address"
    )
    allow_credentials: bool = option(False, "let such pages send what the browser knows the user by")
    ssl_certfile: Path | None = option(None, "certificate chain in PEM: serve HTTPS")
    ssl_keyfile: Path | None = option(None, "its key in PEM, where that is not in the same file")
    uds: Path | None = option(None, "listen on a Unix socket of this path instead of an address and a port")
    max_connections: int = option(8192, "connections at a time", low=1)
    send_timeout: float = option(30.0, "how long a client may leave unread what it is sent", low=0.1)
    stall_timeout: float = option(
        120.0, "how long an executor that has work may give no sign of life; 0: for ever", low=0
    )
    max_body_bytes: int = option(4 * 1024 * 1024, "largest request body", low=1024)
    body_timeout: float = option(10.0, "how long a request body may take to arrive", low=0.1)
    shutdown_timeout: float = option(30.0, "how long running requests may take to end after SIGTERM", low=0)
    sse_keep_alive_interval: float = option(15.0, "silence after which a stream gets a blank line; 0: never", low=0)
    log_level: str = option("info", "least severe messages to log", choices=_log_levels)
    log_format: str = option("human", "lines for people, or a JSON object a line", choices=_log_formats)
    otlp_traces_endpoint: str | None = option(
        None, "where to send a span of each call by OTLP over HTTP, as http://localhost:4318/v1/traces; needs [otel]"
    )


def load_config(given: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> ServeConfig:
    """The command line wins over the environment, that over the file, that over the defaults. Raises ConfigError."""
    values: dict[str, Any] = gather(settings(ServeConfig), given, environ, file)
    return ServeConfig(**values)
