"""Load on an engine that runs by itself, behind HTTP or in a thread: each request has a client that waits for it.

How a request is sent and its answer read is an `Ask`; what is timed, counted and retried is the same for all of them.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple, final

from twophase.core.errors import ConfigError, TwophaseError
from twophase.core.request import FinishReason
from twophase_tools.bench.serve import PROGRESS_S, ServingRun, check_limits
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.workloads import TimedRequest, token_ids_of

NO_ANSWER = "no answer"
RETRIED = (429, 503)
DEFAULT_RETRY_S = 1.0  # where the server does not say when to come again


class Progress(NamedTuple):
    """What has come of a request so far: 0 tokens say that it is accepted, and the last one has a finish reason."""

    num_tokens: int
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0


Ask = Callable[[TimedRequest, tuple[int, ...]], AsyncGenerator[Progress, None]]


class RefusedError(TwophaseError):
    """A request was not served, or not to its end.

    Attributes:
        status: HTTP's; None: the connection could not be made, or broke before there was one. 200: it was accepted.
        retry_after_s: When the server wants it again; None: it does not say.
    """

    def __init__(self, status: int | None, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{NO_ANSWER if status is None else status}: {why}")
        self.status, self.retry_after_s = status, retry_after_s


async def play(
    ask: Ask,
    workload: Iterable[TimedRequest],
    vocab_size: int,
    *,
    seed: int = 0,
    duration_limit_s: float | int | None = None,
    concurrency: int | None = None,
    retries: int = 0,
    say: Callable[[str], None] = lambda line: None,
    now_s: Callable[[], float] = time.monotonic,
) -> ServingRun:
    """Play a workload, each request by a client of its own, until the last one has ended. See `serve`.

    Args:
        concurrency: Clients of a closed loop; None: an open loop, in which requests come by the clock.
        retries: How often a request is sent again that was refused because the server is busy.
        now_s: A clock that runs as fast as the event loop's.

    Raises:
        ConfigError: As `serve`.
    """
    check_limits(duration_limit_s, concurrency)
    coming = deque((request, token_ids_of(request, vocab_size, seed)) for request in workload)
    if len({request.request_id for request, _ in coming}) < len(coming):
        raise ConfigError("two requests of the workload have one id; each needs its own.")
    run = _Run(ask, len(coming), retries, now_s)
    sending = run.closed_loop(coming, concurrency) if concurrency is not None else run.open_loop(coming)
    running = asyncio.create_task(sending)
    telling = asyncio.create_task(run.tell(say))
    _, unfinished = await asyncio.wait({running}, timeout=duration_limit_s)
    running.cancel()
    telling.cancel()
    await asyncio.gather(running, telling, return_exceptions=True)
    if not unfinished:
        running.result()  # raises what was raised
    return run.result(was_cut=bool(unfinished))


@final
class _Run:
    """A run on its way. Only `play` changes it."""

    def __init__(self, ask: Ask, num_requests: int, retries: int, now_s: Callable[[], float]) -> None:
        self._ask, self._num_requests, self._retries, self._now_s = ask, num_requests, retries, now_s
        self._start_s = now_s()
        self._records: dict[str, RequestRecord | None] = {}  # by id, in order of arrival; None: not ended yet
        self._refusals: list[tuple[str, str]] = []
        self._statuses: Counter[str] = Counter()

    async def open_loop(self, coming: deque[tuple[TimedRequest, tuple[int, ...]]]) -> None:
        async with asyncio.TaskGroup() as clients:
            for request, token_ids in coming:
                due_s = self._start_s + request.arrival_s
                await asyncio.sleep(max(0.0, due_s - self._now_s()))
                clients.create_task(self._serve(request, token_ids, due_s))

    async def closed_loop(self, coming: deque[tuple[TimedRequest, tuple[int, ...]]], num_clients: int) -> None:
        async def client() -> None:
            while coming:
                await self._serve(*coming.popleft(), self._now_s())

        async with asyncio.TaskGroup() as clients:
            for _ in range(num_clients):
                clients.create_task(client())

    async def _serve(self, request: TimedRequest, token_ids: tuple[int, ...], due_s: float) -> None:
        """Send a request, again where that is wanted, and note what became of it."""
        self._records[request.request_id] = None
        sent_s = max(due_s, self._now_s())
        times_s: list[float] = []
        last = Progress(0, "abort")  # if this is cancelled before anything has come
        try:
            for retries_left in range(self._retries, -1, -1):
                try:
                    async with aclosing(self._ask(request, token_ids)) as answer:
                        async for progress in answer:
                            times_s += [self._now_s()] * (progress.num_tokens - len(times_s))
                            last = progress if progress.finish_reason else progress._replace(finish_reason="abort")
                    break
                except RefusedError as error:
                    self._statuses[NO_ANSWER if error.status is None else str(error.status)] += 1
                    if error.status not in RETRIED or times_s or not retries_left:
                        self._refusals.append((request.request_id, str(error)))
                        last = last._replace(finish_reason="error")
                        break
                    await asyncio.sleep(DEFAULT_RETRY_S if error.retry_after_s is None else error.retry_after_s)
        finally:
            self._records[request.request_id] = RequestRecord(
                request_id=request.request_id,
                arrival_s=due_s,
                first_scheduled_s=sent_s if times_s else None,
                token_times_s=tuple(times_s),
                finished_s=self._now_s(),
                num_prompt_tokens=len(token_ids),
                num_cached_tokens=last.num_cached_tokens,
                finish_reason=last.finish_reason,
            )

    async def tell(self, say: Callable[[str], None]) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            num_ended = sum(record is not None for record in self._records.values())
            came = f"{len(self._records):,} of {self._num_requests:,} requests came"
            say(f"{self._now_s() - self._start_s:.0f} s: {came}, {num_ended:,} ended")

    def result(self, was_cut: bool) -> ServingRun:
        return ServingRun(
            records=tuple(record for record in self._records.values() if record is not None),
            steps=(),
            window=(self._start_s, self._now_s()),
            refusals=tuple(self._refusals),
            was_cut=was_cut,
            statuses=tuple(sorted(self._statuses.items())),
        )
