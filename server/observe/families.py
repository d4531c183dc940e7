"""The families of GET /metrics, in vLLM's names where meanings agree (docs/observability.md)."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from engine.messages import Cause, FinishReason
from scheduler.request import Failure

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
RATIOS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0)
RUNS = (1, 2, 3, 4, 5, 10, 20, 50, 100)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)

GOOD = (FinishReason.STOP, FinishReason.LENGTH)
FAILURES = (*Failure, FinishReason.ERROR, "cancelled")

REASONS = (
    "deadline_unreachable",
    "executor_failed",
    "promise_refused",
    "queue_full",
    "rate_limit_exceeded",
    "server_shutting_down",
    "too_many_large_bodies",
)

LABELS: Mapping[str, Mapping[str, Iterable[str]]] = {
    "vllm:request_success": {"finished_reason": GOOD},
    "lengthwise:request_failure": {"kind": FAILURES},
    "vllm:admission_rejections": {"reason": REASONS},
    "lengthwise:http_responses": {"method": (), "route": (), "status": ()},
    "lengthwise:client_service_tokens": {"client": ("all",)},
    "lengthwise:pad_tokens": {"phase": ("prefill", "decode")},
    "lengthwise:executor_busy_seconds": {"executor": ()},
    "lengthwise:handed_back_rows": {"cause": Cause, "kv": ("kept", "dropped")},
    "lengthwise:predicted_intervals": {"inside": ("true", "false")},
    "lengthwise:eta_answers": {"interval": ("inside", "below", "above")},
    "lengthwise:promises": {"kept": ("true", "false"), "asked": ("true", "false")},
}  # values known beforehand start at 0

COUNTERS: Mapping[str, str] = {
    "vllm:request_success": "Requests that ended with a complete answer, or at their token limit.",
    "lengthwise:request_failure": "Requests that failed, or whose client left.",
    "vllm:admission_rejections": "Calls refused with 429 or 503, by the code of the error.",
    "lengthwise:http_responses": "HTTP responses.",
    "lengthwise:client_service_tokens": "Service to each client: 1 for a prompt token, 2 for a generated one.",
    "vllm:prompt_tokens": "Prompt tokens read.",
    "vllm:generation_tokens": "Tokens generated for answers.",
    "lengthwise:pad_tokens": "Padding: cells computed or read that held no token of their sequence.",
    "lengthwise:decode_reads": "KV cache cells read by decode steps: sequences times columns.",
    "lengthwise:invalid_tokens": "Tokens generated for finished sequences that still held their slot.",
    "lengthwise:executor_busy_seconds": "Seconds during which an executor was computing.",
    "lengthwise:executor_deaths": "Executors that died.",
    "vllm:num_preemptions": "Running sequences that were preempted for lack of memory or for priority.",
    "lengthwise:handed_back_rows": "Sequences requeued before their end, by cause and fate of their KV cache.",
    "lengthwise:overpredicted_tokens": "Tokens that were predicted and not generated, of judged answers.",
    "lengthwise:underpredicted_tokens": "Tokens that were generated and not predicted, of judged answers.",
    "lengthwise:predicted_within_twice": "Judged answers whose prediction was within a factor of 2.",
    "lengthwise:predicted_intervals": "Judged answers, by whether they were inside the 90 % interval.",
    "lengthwise:promises": "Calls whose answer was promised and came or failed, by whether kept and asked for.",
    "lengthwise:eta_answers": "Answers that ended inside, below or above the interval estimated at arrival.",
}  # help texts

HISTOGRAMS: Mapping[tuple[float, ...], Mapping[str, str]] = {
    SECONDS: {
        "vllm:time_to_first_token_seconds": "Seconds from a request's arrival to its first token.",
        "lengthwise:step_seconds": "Seconds of an executor's step: a chunk of a prompt, or one decode step.",
        "lengthwise:event_loop_lag_seconds": "Seconds by which the event loop woke up late, four times a second.",
        "lengthwise:prediction_seconds": "Seconds that a request waits for its length prediction.",
        "lengthwise:late_prediction_seconds": "Seconds that a request had gone on without its length prediction.",
        "lengthwise:serving_time_seconds": "Seconds taken by batches whose serving time was predicted.",
        "lengthwise:serving_time_error_seconds": "Seconds between predicted and true serving time of a batch.",
        "vllm:request_queue_time_seconds": "Seconds from a request's arrival until its prompt begins to be read.",
        "vllm:e2e_request_latency_seconds": "Seconds from a request's arrival to its last token.",
        "vllm:request_inference_time_seconds": "Seconds from the start of a request's prompt to its last token.",
        "vllm:request_prefill_time_seconds": "Seconds from the start of a request's prompt to its first token.",
        "vllm:request_decode_time_seconds": "Seconds from a request's first token to its last.",
    },
    GAPS: {
        "vllm:request_time_per_output_token_seconds": "Mean seconds between two tokens of a request.",
    },
    TOKENS: {
        "vllm:request_prompt_tokens": "Prompt tokens of a request.",
        "vllm:request_generation_tokens": "Tokens of an answer, the end token included.",
        "vllm:request_params_max_tokens": "The token limit (max_tokens) of a request.",
        "lengthwise:request_predicted_tokens": "Predicted length of an answer.",
        "lengthwise:predicted_length_error_tokens": "Tokens between predicted and true length, of judged answers.",
    },
    RUNS: {"lengthwise:request_runs": "Times that a request was given to an executor, by slice or preemption."},
    ROWS: {"lengthwise:batch_rows": "Sequences in the batch at each decode step."},
    STEP_TOKENS: {"vllm:iteration_tokens_total": "Tokens read and generated in one step of an executor."},
    RATIOS: {"lengthwise:promised_latency_ratio": "Latency promised at arrival, divided by the true latency."},
    SHARES: {
        "lengthwise:predicted_length_relative_error": "Error of the predicted length, divided by the true length.",
        "lengthwise:eta_relative_error": "Error of the latency estimated at arrival, divided by the true latency.",
    },
}  # help texts by bucket bounds

SPANS: Mapping[str, tuple[str, str]] = {
    "vllm:request_queue_time_seconds": ("arrival", "started"),
    "vllm:e2e_request_latency_seconds": ("arrival", "end"),
    "vllm:request_inference_time_seconds": ("started", "end"),
    "vllm:request_prefill_time_seconds": ("started", "first_token"),
    "vllm:request_decode_time_seconds": ("first_token", "end"),
}  # between moments in Times

# of each token, hence counted by WeightedHistogram
PER_TOKEN = {
    "vllm:inter_token_latency_seconds": "Seconds between two tokens of a sequence.",
    "lengthwise:token_write_seconds": "Seconds from the making of a stream's tokens until they are written.",
}


TALLIED: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("prompt", "vllm:prompt_tokens", {}),
    ("generated", "vllm:generation_tokens", {}),
    ("pad", "lengthwise:pad_tokens", {"phase": "prefill"}),
    ("pad_reads", "lengthwise:pad_tokens", {"phase": "decode"}),
    ("reads", "lengthwise:decode_reads", {}),
    ("invalid", "lengthwise:invalid_tokens", {}),
)


class Registry(CollectorRegistry):
    """Adds the model's name, and drops creation times, a fifth of all samples."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._labels = {"model_name": model}

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            common = self._labels if ":" in family.name else {}
            family.samples = [
                sample._replace(labels={**common, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield family


class WeightedHistogram(Collector):
    """The last bucket is open."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._bounds = (*bounds, inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[HistogramMetricFamily]:
        bounds = ["+Inf" if bound == inf else str(float(bound)) for bound in self._bounds]
        counts = [float(count) for count in accumulate(self._counts)]
        yield HistogramMetricFamily(self._name, self._text, list(zip(bounds, counts, strict=True)), self._sum)
