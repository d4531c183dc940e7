"""Settings as flags, LENGTHWISE_ variables and TOML keys; a field's help may stand below it, the first line of a
class its group's title.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from models.catalog.catalog import DEFAULT_EMBEDDER, DEFAULT_MODEL, EMBEDDER_MAX_TOKENS
from models.network.generation_config import check_overrides
from models.network.quantization import QUANTIZATIONS, Kernels
from models.options import Count, Natural, NonNegative, Positive, option
from scheduler.options import Ordering, Scheduling
from scheduler.strategy import STRATEGIES, Length
from server.front_settings import AccessSettings, Admission, Listening, Observation
from server.lengths.instruction import InstructionSplit
from server.settings import ConfigError, load_settings

__all__ = ["ConfigError", "FrontConfig", "GatewayConfig", "ServeConfig", "load_config"]


def _check_strategy(name: str) -> None:
    from scheduler.assembly import find_strategy

    find_strategy(name)


DEVICES = ("auto", "cpu", "cuda")


def _check_device(name: str) -> None:
    from scheduler.serving_time.presets import find_virtual

    if name not in DEVICES and find_virtual(name) is None:
        raise ValueError(f"{name!r} is none of {', '.join(DEVICES)}, virtual:PRESET")


def _check_name(name: str) -> None:
    if not name.strip():
        raise ValueError(f"{name!r} is no name")


NO_EMBEDDINGS = "none"  # the --embedding-model that is none


@dataclass(frozen=True, kw_only=True)
class Model:
    """Model: what is served."""

    model: str = option(DEFAULT_MODEL, positional=True)
    """what to serve: a name of `lengthwise models`, a folder, a .gguf file, a hub id"""
    served_model_name: tuple[str, ...] = option((), check=_check_name)
    """names by which the API knows the model; answers have the first; default: the model's own"""
    quantization: str = option("auto", choices=lambda: ("auto", *QUANTIZATIONS))
    """how weights are kept; CUDA: int4, fp8; auto: 16-bit ones stay so where a CPU multiplies in float32, else none"""
    kernels: str = option("auto", choices=lambda: tuple(Kernels))
    """who computes a pass on a CPU: this server's compiled kernels, or torch's; auto: compiled ones where they can"""
    chat_template: Path | None = option(None, "file with a Jinja chat template; default: the model's own")
    override_generation_config: dict[str, Any] | None = option(None, check=check_overrides)
    """fields in place of the model's own generation_config.json, as {"temperature": 0.2}"""
    default_max_tokens: Count | None = option(None)
    """tokens of a chat's answer without max_tokens; default: what the context holds, 1024 for smollm2-135m-instruct"""
    embedding_model: str | None = option(
        None,
        "sentence embedder of /v1/embeddings, fetched at the start; none: no embeddings; default: "
        f"{DEFAULT_EMBEDDER} if here",
    )
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = option(None)
    """makes the seeds of requests that bring none repeatable; default: new ones at each start"""


@dataclass(frozen=True, kw_only=True)
class MemorySize:
    """Size: what decides how much memory a model takes."""

    device: str = option("auto", choices=lambda: (*DEVICES, "virtual:PRESET"), check=_check_device)
    """where to run; auto: CUDA if there, else the CPU; virtual:PRESET: a simulated device, dummy text"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto")
    """type of the weights; auto: bfloat16 where it is fast, else float32"""
    max_num_seqs: Annotated[int, Meta(ge=1, le=65536)] | None = option(None)
    """sequences that run at a time on one executor; default: as many as this machine gains by, measured once"""
    max_model_len: Annotated[int, Meta(ge=2)] | None = option(None)
    """longest prompt plus answer, in tokens; default: the model's context"""

    @property
    def expected_slots(self) -> int:
        """On one executor, before measuring."""
        return self.max_num_seqs or 32


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Execution: executors and memory."""

    executors: Annotated[int, Meta(ge=0, le=1024)] = option(0)
    """executor threads; 0: one per CUDA device, else one; on a CPU they share its cores"""
    max_num_batched_tokens: Count | None = option(None)
    """prompt tokens that are read between two decode steps; default: 2048 on CUDA, else 512"""
    kv_cache_memory: Annotated[float, Meta(ge=0.001)] | None = option(None)
    """memory for the KV cache of an executor, in GiB; default: what the device leaves"""
    swap_space: NonNegative | None = option(None)
    """host memory for the KV cache of preempted sequences, in GiB; default: 4, or a quarter of what is free if less"""
    prefix_cache_memory: NonNegative | None = option(None)
    """host memory for the KV cache of prompts that may come again, in GiB; default: an eighth of what is free"""
    gpu_memory_utilization: Annotated[float, Meta(ge=0.01, le=1)] = option(0.9)
    """share of a CUDA device's memory to use, weights included"""
    enforce_eager: bool = option(False, "decode without CUDA graphs")
    batch_invariant: bool = option(False)
    """refuse to start unless compiled kernels make each answer independent, bit for bit, of those beside it"""
    stall_timeout: NonNegative = option(120.0)
    """how long an executor that has work may report nothing before it counts as lost; 0: for ever"""

    def chunk_tokens(self, device: str) -> int:
        return self.max_num_batched_tokens or (2048 if device.startswith("cuda") else 512)


@dataclass(frozen=True, kw_only=True)
class StrategyChoice(Ordering):
    """Strategy: how requests are ordered, batched and placed."""

    strategy: str = option(
        "lengthwise", choices=lambda: (*STRATEGIES, "PACKAGE:ROW", "FILE.py:ROW"), check=_check_strategy
    )
    """how requests are ordered, batched and placed"""
    fair: bool | None = option(None)
    """share service out between clients, by the weights of their API keys; default: with two keys or more"""


@dataclass(frozen=True, kw_only=True)
class LengthPrediction:
    """Length prediction: how long answers become."""

    length_predictor: str | None = option(None, choices=lambda: tuple(Length))
    """predictor of the lengths of answers; default: the strategy's own"""
    embedder: str = option(DEFAULT_EMBEDDER, "sentence embedder of the forest and of the length cache")
    embedder_max_tokens: Count = option(EMBEDDER_MAX_TOKENS, "tokens of a text that the embedder reads")
    instruction_split: str = option("system", choices=lambda: tuple(InstructionSplit))
    """where the instruction of a prompt without system message is"""
    length_cache_size: Natural | None = option(None)
    """prompts whose near-duplicates need no predictor; 0: no cache; default: 4096 with the proxy, else 0"""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Recording: what is kept of requests that have ended, and learned from it."""

    prediction_timeout: NonNegative = option(0.01, "how long a request that queues waits for its predicted length")
    learning_interval: NonNegative = option(180.0, "how often the forest learns from the requests served; 0: never")
    journal: Path | None = option(None, "file in which ended requests are recorded; default: in the cache folder")
    no_journal: bool = option(False, "record nothing, so that nothing learned outlives the server")
    journal_max_age: Positive | None = option(None, "days after which recorded requests are deleted; default: never")
    journal_max_size: Annotated[float, Meta(ge=0.001)] = option(1.0)
    """GiB that the journal may grow to; its oldest entries make room for new ones"""
    journal_sync: bool = option(False, "hold the end of each answer back until it is recorded on the disk")
    journal_prompts: bool = option(False, "record prompts as well, not only the numbers computed from them")


@dataclass(frozen=True, kw_only=True)
class AnswerSettings:
    """Answers: what requests may ask for."""

    max_file_bytes: Annotated[int, Meta(ge=1024)] = option(100 * 1024 * 1024, "largest file sent for a batch")
    files_size: NonNegative = option(1.0)
    """disk for files that clients send for batches, in GiB; answers may take as much again; 0: no files, no batches"""
    stored_response_bytes: Natural = option(64 * 1024 * 1024)
    """responses kept in memory for previous_response_id; 0: none"""
    prefix_cache_shared: bool = option(False)
    """let prompts kept for one key serve others, which answers' times can show"""
    allow_replay: bool = option(False, "let requests bring their answer's length (replay_tokens), for benchmarks only")
    no_structured_outputs: bool = option(False)
    """refuse requests whose answers must match a schema or a grammar, calls that are required too"""
    close_schemas: bool = option(False)
    """JSON schemas allow only the properties that they name, and want them all, as those with strict: true do"""
    refuse_long_max_tokens: bool = option(False)
    """refuse a max_tokens that does not fit the context behind the prompt, in place of cutting it to what fits"""
    accept_any_model: bool = option(False)
    """serve requests for models of any name, for programs that ask for claude-* or gpt-*; answers name this one"""
    stop_repetition: bool | None = option(None)
    """end an answer whose last 256 tokens repeat the same 64 or fewer (default: only the packaged default model's)"""


@dataclass(frozen=True, kw_only=True)
class FrontConfig(Observation, Listening, AccessSettings, Admission, Recording, StrategyChoice):
    """Settings of every server and gateway. Durations are seconds, sizes bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig(FrontConfig, AnswerSettings, LengthPrediction, Scheduling, Execution, MemorySize, Model):
    """All settings of `lengthwise serve`."""


@dataclass(frozen=True, kw_only=True)
class Backends:
    """Backends: the servers that answer."""

    backend: tuple[str, ...] = option(())
    """base URL of a server with OpenAI's API, as http://127.0.0.1:8001/v1; URL=FILE: its key is in that file"""
    backend_api_key: str | None = option(None, secret=True)
    """key for backends without a file; default: none, or, where no keys are set here, what each client sends"""
    pass_client_keys: bool = option(False)
    """send backends the keys by which clients are let in here, and leave it to them to keep these apart"""
    pass_unknown: bool = option(False, "pass on calls to any path below /v1, not only to known ones")
    no_retry: bool = option(False)
    """never send a call to a backend again; default: at most twice, before its first byte, if nothing is kept of it"""
    first_byte_timeout: NonNegative = option(0.0)
    """how long a backend may take to an answer's first byte, its queue and the prompt included; 0: for ever"""
    idle_timeout: NonNegative = option(600.0, "how long a backend may pause within an answer; 0: for ever")
    wait: bool = option(False, "wait at the start until each backend answers")
    slots: Count | None = option(None, "calls a backend answers at a time; default: what is seen, or llama.cpp reports")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(FrontConfig, Backends):
    """All settings of `lengthwise gateway`."""

    @property
    def name(self) -> str:
        return ",".join(url.partition("://")[2] for url in self.urls)

    @property
    def urls(self) -> list[str]:
        return [one.partition("=")[0] for one in self.backend]


def load_config(given: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> ServeConfig:
    """See `load_settings`. Raises ConfigError."""
    return load_settings(ServeConfig, given, environ, file)
