"""Outcomes for tests, written by hand."""

from dataclasses import replace

from loadgen.client.request import CHAT, PreparedRequest, RequestOutcome, Status

DONE = RequestOutcome(PreparedRequest(0, CHAT, b""), "completed", 0.0, (1.0,), 1.0, 1, 1)


def completed(
    token_times: tuple[float, ...], *, tokens: int, prompt: int = 10, scheduled: float = 0.0, sent: float | None = None
) -> RequestOutcome:
    """A completed request that ends with its last output."""
    request, sent = replace(DONE.request, due=scheduled), scheduled if sent is None else sent
    timed = replace(DONE, request=request, sent=sent, token_times=token_times, end=token_times[-1])
    return replace(timed, output_tokens=tokens, prompt_tokens=prompt)


def ended(status: Status, sent: float = 0.0, end: float = 1.0) -> RequestOutcome:
    """A request that did not complete."""
    return replace(DONE, status=status, sent=sent, end=end, token_times=(), output_tokens=0)
