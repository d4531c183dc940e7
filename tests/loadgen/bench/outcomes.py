"""Outcomes for tests, written by hand."""

from dataclasses import replace

from loadgen.client.request import CHAT, PreparedRequest, RequestOutcome, Status

DONE = RequestOutcome(PreparedRequest(0, CHAT, b""), "completed", 0.0, (1.0,), 1.0, 1, 1)


def completed(
    token_times: tuple[float, ...], *, tokens: int, prompt: int = 10, scheduled: float = 0.0, sent: float | None = None
) -> RequestOutcome:
    """A completed request that ends with its last output."""
    return replace(
        DONE,
        request=replace(DONE.request, due=scheduled),
        sent=scheduled if sent is None else sent,
        token_times=token_times,
        end=token_times[-1],
        output_tokens=tokens,
        prompt_tokens=prompt,
    )


def ended(status: Status, sent: float = 0.0, end: float = 1.0) -> RequestOutcome:
    """A request that did not complete."""
    return replace(DONE, status=status, sent=sent, end=end, token_times=(), output_tokens=0)
