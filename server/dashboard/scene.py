"""The dashboard's view, from requests and reports; rows are followed even without viewers."""

from collections import Counter, deque
from dataclasses import asdict
from itertools import chain

import msgspec

from engine.messages import ExecutorDied, FinishReason, Report, StepReport, StepStats
from scheduler.dispatcher import Dispatcher
from scheduler.length.likely import can_be_judged, is_inside, median_length
from scheduler.request import Request, State
from scheduler.waiting.fair import service_had
from scheduler.worker import Worker
from server.dashboard import snapshot
from server.dashboard.lanes import RowTimeline
from server.version import VERSION

MOST_WAITERS = 40  # of the queue
MOST_SENT = 4  # of them, to executors: they have no place
MOST_CLIENTS = 12
MOST_SERVED = 4096  # remembered
MOST_NEWS = 4000  # changes waiting for a snapshot
REMEMBERED = 200  # answers, and first tokens, for new dashboards
MINUTE = 60.0  # seconds of totals for new dashboards
SECOND = 1.0  # between two totals


class DashboardState:
    """Event loop only."""

    def __init__(self, dispatcher: Dispatcher, model: str, strategy: str, context_length: int) -> None:
        self._dispatcher = dispatcher
        self._server = (model, strategy, context_length)
        self._epoch = dispatcher.now()
        self._latest: deque[snapshot.Ended] = deque(maxlen=REMEMBERED)
        self._latest_firsts: deque[snapshot.FirstToken] = deque(maxlen=REMEMBERED)
        self._moments: deque[snapshot.Moment] = deque(maxlen=int(MINUTE / SECOND))
        self._tokens = StepStats()
        self._ended = 0
        self._failed = 0
        self._service: Counter[str] = Counter()
        self._seconds: dict[int, float] = {}
        self._changes: deque[snapshot.Change] = deque(maxlen=MOST_NEWS)
        self._fresh: deque[snapshot.Ended] = deque(maxlen=MOST_NEWS)
        self._firsts: deque[snapshot.FirstToken] = deque(maxlen=MOST_NEWS)
        self.forget()

    def begin(self) -> None:
        now, workers = self._now(), self._dispatcher.workers
        self._lanes = {one.index: RowTimeline(one.index, self._changes, one.requests.values(), now) for one in workers}

    def forget(self) -> None:
        for news in (self._changes, self._fresh, self._firsts):
            news.clear()
        self._stirred = True

    @property
    def stirred(self) -> bool:
        return self._stirred or bool(self._dispatcher.waiting)

    def receive(self, report: Report) -> None:
        self._stirred = True
        now, lanes = self._dispatcher.now() - self._epoch, self._lanes[report.executor]
        if isinstance(report, StepReport):
            self._tokens += report.tally
            self._seconds[report.executor] = report.seconds
            worker = next(worker for worker in self._dispatcher.workers if worker.index == report.executor)
            lanes.prune(worker.requests.keys(), now)
            lanes.report(report, worker.requests, now)
        elif isinstance(report, ExecutorDied):
            lanes.clear(now)
        if not self._moments or now >= self._moments[-1].t + SECOND:
            self._moments.append(self._moment(now))

    def on_first_token(self, request: Request, now: float) -> None:
        self._stirred = True
        self._latest_firsts.append(snapshot.FirstToken(self._since(now), round(now - request.times.came, 3)))
        self._firsts.append(self._latest_firsts[-1])

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        self._stirred = True
        if request.client in self._service or len(self._service) < MOST_SERVED:
            self._service[request.client] += round(service_had(request))
        if reason is FinishReason.ERROR:
            self._failed += 1
        elif reason is not None:
            self._ended += 1
            self._latest.append(self._entry(request, reason, now))
            self._fresh.append(self._latest[-1])

    def hello(self) -> snapshot.Hello:
        now = self._now()
        devices = [worker.info for worker in self._dispatcher.workers]
        self._prune(now)
        changes = [change for lanes in self._lanes.values() for change in lanes.history(now)]
        moments = [moment for moment in self._moments if moment.t > now - MINUTE]
        facts = ("Lengthwise", VERSION, *self._server, devices)
        return snapshot.Hello(*facts, list(self._latest), list(self._latest_firsts), round(now, 3), changes, moments)

    def tick(self) -> snapshot.Tick:
        """The present, and events since the last call."""
        now = self._now()
        self._prune(now)
        tick = snapshot.Tick(
            **msgspec.structs.asdict(self._moment(now)),
            executors=[self._executor(worker) for worker in self._dispatcher.workers],
            changes=[*self._changes],
            queue=self._queue(),
            ended=[*self._fresh],
            first_tokens=[*self._firsts],
            clients=self._tell_clients(),
            order=self._dispatcher.waits.by_arrival,
        )
        self.forget()
        self._stirred = False
        return tick

    def _prune(self, now: float) -> None:
        for worker in self._dispatcher.workers:
            self._lanes[worker.index].prune(worker.requests.keys(), now)

    def _moment(self, now: float) -> snapshot.Moment:
        totals = snapshot.Totals(**asdict(self._tokens), ended=self._ended, failed=self._failed)
        table = self._dispatcher.table
        return snapshot.Moment(round(now, 3), table.requests_waiting, table.requests_running, totals)

    def _tell_clients(self) -> list[snapshot.ShownClient]:
        waiting: Counter[str] = Counter()
        running: Counter[str] = Counter()
        service = Counter(self._service)
        if len(service) > 1 or self._dispatcher.table.requests_waiting:
            waiting.update(one.client for one in chain(self._dispatcher.table.not_begun, self._dispatcher.waiting))
        for held in chain.from_iterable(worker.requests.values() for worker in self._dispatcher.workers):
            service[held.client] += round(service_had(held))
            running[held.client] += held.state is State.RUNNING
        names = {**dict(service.most_common(MOST_CLIENTS)), **dict(waiting.most_common(MOST_CLIENTS))}
        shown = [snapshot.ShownClient(name, waiting[name], running[name], service[name]) for name in names]
        return shown[:MOST_CLIENTS] if len(shown) > 1 else []

    def _executor(self, worker: Worker) -> snapshot.ExecutorNow:
        shape, index = worker.shape, worker.index
        return snapshot.ExecutorNow(
            index=index,
            alive=worker.serves,
            rows=self._lanes[index].rows,
            batch=shape.rows,
            staged=shape.staged,
            window=shape.end - shape.start,
            columns=shape.columns,
            capacity=worker.capacity_tokens,
            step_ms=round(self._seconds.get(index, 0.0) * 1000, 2),
        )

    def _queue(self) -> list[snapshot.Waiter]:
        sent = self._dispatcher.table.not_begun[:MOST_SENT]
        waiting = self._dispatcher.table.first_in_line(MOST_WAITERS - len(sent))
        return [self._waiter(request) for request in (*sent, *waiting)]

    def _waiter(self, request: Request) -> snapshot.Waiter:
        expected = None if request.executor is not None else self._dispatcher.waits.wait(request)
        return snapshot.Waiter(
            row=request.row_id,
            input=request.input_length,
            generated=request.generated,
            predicted=snapshot.rounded(median_length(request)),
            waited=round(self._dispatcher.now() - request.times.came, 2),
            expected=None if expected is None else round(expected, 2),
            priority=request.priority,
            executor=request.executor,
        )

    def _entry(self, request: Request, reason: FinishReason, now: float) -> snapshot.Ended:
        times = request.times

        def after(moment: float | None) -> float | None:
            return None if moment is None else round(moment - times.came, 3)

        return snapshot.Ended(
            at=self._since(now),
            input=request.input_length,
            generated=request.generated,
            predicted=snapshot.rounded(median_length(request)) if can_be_judged(request, reason) else None,
            queued=after(times.started),
            first=after(times.first_token),
            latency=round(now - times.came, 3),
            inside=is_inside(request) if can_be_judged(request, reason) else None,
            kept=request.keeps_promise(now),
        )

    def _now(self) -> float:
        return self._dispatcher.now() - self._epoch

    def _since(self, moment: float) -> float:
        return round(moment - self._epoch, 3)
