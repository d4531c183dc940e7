"""A trial of an order from outside."""

from engine.sampling.params import SamplingParams
from scheduler.request import Request, Times
from scheduler.waiting.queue import RankedQueue

PROMPTS = (1, 40, 7, 300)  # tokens


def try_order(queue: RankedQueue) -> None:
    """What a request meets from its arrival to its end; raises what the order raises, or TypeError."""
    requests = [
        Request(-number, (0,) * length, SamplingParams(max_tokens=16), Times(float(number)), client=f"client {number}")
        for number, length in enumerate(PROMPTS, start=1)
    ]
    for request in requests[1:]:
        request.predicted_length = request.input_length / 2
    for request in requests:
        if not isinstance(key := queue.order.key(request, request.times.arrival), tuple):
            raise TypeError(f"key returns {type(key).__name__}, not tuple")
        if any(one != one for one in key):
            raise TypeError("key returns NaN")
        queue.add(request)
    now = float(len(requests))
    for request in requests:
        queue.revise(request)
        queue.ahead(request, now)
    for left in range(len(requests), 0, -1):
        if len(ranked := [*queue.ranked(now)]) != left or not {*ranked} <= {*requests}:
            raise TypeError("rank returns other requests than it is given")
        request = ranked[0]
        queue.serve(request)
        request.generated = 1
        queue.order.ended(request)
