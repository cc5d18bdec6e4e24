"""`AsyncLLM`: the engine for callers in an event loop, named after vLLM's class."""

import asyncio
import atexit
import itertools
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase.core.plan import StepTrace
from twophase.core.request import RequestOutput, SamplingParams
from twophase.core.rules import DURATION, TEXT, checked, optional, whole_number
from twophase.engine.metrics import EngineStats
from twophase.engine.request_state import Prompt, RequestState
from twophase.llm import LLM
from twophase.model.tokenizer import Tokenizer
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_features.serving.errors import DeadlineError, DrainingError, EngineDeadError, QueueFullError
from twophase_features.serving.openmp import release_openmp_workers
from twophase_features.serving.stream import Event, RequestStream, deliver

MAX_QUEUE = optional(whole_number(at_least=1))
DEADLINE = optional(DURATION)

logger = logging.getLogger(__name__)


@runtime_checkable
class Observer(Protocol):
    """Called in the engine's thread between two steps, so it must be quick.

    An observer that raises is removed, with a warning in the log; the requests continue.
    """

    def note_step(self, step: StepTrace) -> None: ...

    def note_end(self, output: RequestOutput) -> None:
        """A request finished, was aborted, failed or passed its deadline. `output` is its output so far."""
        ...


@final
class AsyncLLM:
    """An engine whose loop runs in a thread of its own; requests come from any event loop, until `close`.

    Only the engine's thread changes the engine, between two steps: other threads post commands. Two more threads
    prepare requests in order of arrival: one tokenizes text, the other compiles schemas to grammars, so neither steps
    nor an event loop wait for either. A request in preparation counts as waiting: it counts against `max_queue`, can be
    aborted, its deadline runs, and `drain` waits for it.

    If a step raises, the thread ends: `error` is set, and every unfinished request raises `EngineDeadError`.

    Args:
        model, config, options: As `LLM`.
        max_queue: Maximum number of requests that wait for their first step; further requests are refused. None:
            unlimited.

    Attributes:
        llm: The owner of the engine. Read its attributes; do not call its methods.
        model_name: The hub id or the folder's name.
        error: The exception that ended the engine's thread.
        is_draining: Whether new requests are refused, because `drain` was called.

    Raises:
        ConfigError: `max_queue` breaks its rule; or as `LLM`.
        ModelFolderError, TypeError, BackendUnavailableError, PeerLostError, SystemExit: As `LLM`.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        config: EngineConfig | None = None,
        *,
        max_queue: int | None = None,
        **options: Any,
    ) -> None:
        max_queue = checked("max_queue", max_queue, MAX_QUEUE, ConfigError)
        llm = LLM(model, config, **options)
        self._start(llm, max_queue, Path(model).name if Path(model).is_dir() else str(model), is_owner=True)

    @classmethod
    def of(cls, llm: LLM, *, max_queue: int | None = None) -> "AsyncLLM":
        """Run the engine of an existing LLM, which can be used again after `close`.

        Raises:
            ConfigError: `max_queue` breaks its rule.
            InvalidRequestError: The LLM has unfinished requests, or an AsyncLLM runs its engine already.
        """
        made = cls.__new__(cls)
        max_queue = checked("max_queue", max_queue, MAX_QUEUE, ConfigError)
        made._start(llm, max_queue, llm.model_dir.name, is_owner=False)
        return made

    def _start(self, llm: LLM, max_queue: int | None, model_name: str, is_owner: bool) -> None:
        self.llm, self.model_name = llm, model_name
        self.error: BaseException | None = None
        self.is_draining = False
        self._engine, self._max_queue, self._is_owner = llm.engine, max_queue, is_owner
        self._ids = itertools.count()
        self._observers: list[Observer] = []
        self._stats: EngineStats = llm.engine.stats()  # as of the end of the latest turn
        self._latest_step: StepTrace | None = llm.engine.latest_step
        self._events: list[tuple[RequestStream, Event]] = []  # of this turn
        # Guards the next three fields; notified when one of these fields changes.
        self._changed = threading.Condition()
        self._inbox: list[Callable[[], object]] = []
        self._jobs: dict[str, RequestStream] = {}  # the unfinished ones, in order of arrival
        self._is_stopped = False
        release_openmp_workers()  # this thread has loaded the model; from now on another thread computes
        llm.check_usable()
        if llm.engine.has_unfinished_requests():
            raise InvalidRequestError("the LLM has unfinished requests; finish or abort them first.")
        llm.refusal = "an AsyncLLM runs this LLM's engine: send requests to it, or `close` it first."
        self._with_text, self._with_grammar = ThreadPoolExecutor(1, "text"), ThreadPoolExecutor(1, "grammar")
        self._thread = threading.Thread(target=self._run, name="twophase-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # -- requests

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continue a prompt, yielding its completions so far; the last output is `finished`.

        Closing the generator, or cancelling the task that reads it, aborts the request: its blocks are free before the
        next step. A request that fails while it runs raises nothing: its finish reason is 'error'.

        Args:
            prompt, sampling_params, options: As `submit`.

        Raises:
            InvalidRequestError: The request could never be served.
            QueueFullError: `max_queue` requests wait already.
            DrainingError: `drain` was called.
            DeadlineError: The request was not finished by its deadline; its output so far has been yielded.
            EngineDeadError: The engine's thread died, before or meanwhile (`error` has the reason), or was closed.
        """
        outputs = await self.submit(prompt, sampling_params, **options)
        try:
            async for output in outputs:
                yield output
        finally:
            outputs.abort()

    async def submit(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        deadline_s: float | int | None = None,
        **options: Any,
    ) -> RequestStream:
        """As `generate`, but returns as soon as the engine has accepted the request. Refusals, and a deadline that
        passes before acceptance, are raised here; later errors by the stream.

        Args:
            prompt: As in `LLM.generate`.
            request_id: Unique among the unfinished ones; None: a number.
            deadline_s: Seconds from now; a request that is not finished by then is aborted.
            options: priority, cache_salt, tenant and ttft_slo_s, see `Request`; stream=False: no intermediate outputs,
                only the last one.
        """
        deadline_s = checked("deadline_s", deadline_s, DEADLINE)
        request_id = f"async-{next(self._ids)}" if request_id is None else checked("request_id", request_id, TEXT)
        job = RequestStream(request_id, prompt, sampling_params, options, deadline_s)
        job.abort = partial(self._post, partial(self._abort, job))
        has_grammar = getattr(sampling_params, "structured_outputs", None) is not None
        with self._changed:
            self.check_acceptance()
            if request_id in self._jobs:
                raise InvalidRequestError(f"request id {request_id!r} is in use by an unfinished request.")
            self._jobs[request_id] = job
            (self._with_grammar if has_grammar else self._with_text).submit(self._prepare, job)
            self._changed.notify_all()  # its deadline may be the earliest
        try:
            await job.accepted()
        except BaseException:  # cancelled: the engine may have accepted it already
            job.abort()
            raise
        return job

    def check_acceptance(self) -> None:
        """Whether a request would be accepted now, before there is one; a server asks before it reads a body. Raises
        EngineDeadError, DrainingError or QueueFullError as `generate`."""
        if not self.is_alive:
            raise self._death()
        if self.is_draining:
            raise DrainingError("the engine is draining: it finishes accepted requests and accepts no new ones.")
        with self._changed:
            num_waiting = sum(not job.is_scheduled for job in self._jobs.values())
        if self._max_queue is not None and num_waiting >= self._max_queue:
            raise QueueFullError(
                f"at most {self._max_queue} requests may wait (max_queue), and {num_waiting} do; try again later."
            )

    # -- life cycle

    @property
    def is_alive(self) -> bool:
        """Whether requests are served: the thread has neither died nor been closed."""
        return self.error is None and not self._is_stopped

    async def drain(self, timeout_s: float | int | None = None) -> bool:
        """Refuse new requests and wait for the accepted ones; False if they took longer than `timeout_s`."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: not self._jobs, timeout_s)

        self.is_draining = True
        return await asyncio.to_thread(wait)

    def close(self) -> None:
        """End the engine's thread, and an LLM that was made here. Unfinished requests raise `EngineDeadError`.

        Waits for the step that is running; in an event loop, `async with` or `asyncio.to_thread` wait elsewhere.
        """
        atexit.unregister(self.close)
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        for threads in (self._with_text, self._with_grammar):
            threads.shutdown(wait=False, cancel_futures=True)
        if threading.current_thread() is not self._thread:  # an observer may close it
            self._thread.join()
        if self._is_owner:
            self.llm.close()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    # -- observation

    def stats(self) -> EngineStats:
        """Statistics as of the end of the latest step. Does not wait for a step."""
        return self._stats

    @property
    def num_unfinished(self) -> int:
        """Accepted requests that have not ended."""
        return len(self._jobs)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place or blocks, and requests submitted since `stats` were taken."""
        with self._changed:
            return self._stats.num_waiting + sum(not job.is_accepted for job in self._jobs.values())

    @property
    def queue_age_s(self) -> float | None:
        """Seconds that the oldest never-scheduled request has waited; None if every request has been scheduled.

        Unlike `stats`, it grows while a step runs, so it also shows a step that hangs.
        """
        with self._changed:
            oldest = next((job for job in self._jobs.values() if not job.is_scheduled), None)
        return None if oldest is None else time.monotonic() - oldest.arrival_s

    @property
    def trace(self) -> tuple[StepTrace, ...]:
        return self._engine.trace

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.llm.tokenizer

    def observe(self, observer: Observer) -> None:
        """Report each step and each request's end to `observer` from now on, until it raises."""
        self._observers.append(observer)

    # -- between the threads

    def _post(self, command: Callable[[], object]) -> None:
        with self._changed:
            self._inbox.append(command)
            self._changed.notify_all()

    def _death(self) -> EngineDeadError:
        if self.error is None:
            return EngineDeadError("the engine was closed.")
        return EngineDeadError(
            f"the engine's thread died of {type(self.error).__name__}: {self.error}. No request can be served; "
            f"start it again."
        )

    def _prepare(self, job: RequestStream) -> None:
        """In one of the two threads that prepare requests."""
        if self._jobs.get(job.request_id) is not job:  # aborted, or past its deadline
            return
        try:
            prepared = self._engine.prepare(
                job.request_id, job.prompt, job.params, arrival_s=job.arrival_s, **job.options
            )
        except BaseException as error:  # a Rust library's panic is not an Exception
            refusal = error if isinstance(error, Exception) else RuntimeError(repr(error))
            self._post(partial(self._end, job, refusal))
        else:
            self._post(partial(self._add, job, prepared))

    # -- in the engine's thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            self.error = error
        self._end_all()

    def _turn(self) -> bool:
        """Run the posted commands, then a step, and deliver the events; False when the thread must stop."""
        with self._changed:
            while not (self._inbox or self._is_stopped) and self._changed.wait(self._max_sleep_s()):
                pass  # a deadline may have come that is earlier
            if self._is_stopped:
                return False
            commands, self._inbox = self._inbox, []
        for command in commands:
            command()
        self._expire()
        if self._engine.has_unfinished_requests():
            self._step()
        self._deliver()
        return True

    def _max_sleep_s(self) -> float | None:
        """Seconds to sleep unless a command is posted; None: no limit."""
        limits_s = [job.deadline_s - time.monotonic() for job in self._jobs.values() if job.deadline_s is not None]
        if self._engine.has_unfinished_requests():
            limits_s.append(self._engine.idle_s)
        return max(0.0, min(limits_s)) if limits_s else None

    def _add(self, job: RequestStream, prepared: RequestState) -> None:
        if self._jobs.get(job.request_id) is not job:  # aborted, or past its deadline
            return
        try:
            self._engine.add(prepared)
        except Exception as error:  # the request's fault; the engine is unchanged
            self._end(job, error)
        else:
            self._events.append((job, None))

    def _abort(self, job: RequestStream, reason: Exception | None = None) -> None:
        """End an unfinished job; its stream gets the reason, or no further event."""
        if self._end(job, reason):
            self._abort_in_engine(job.request_id)

    def _abort_in_engine(self, request_id: str) -> None:
        output = self._engine.abort(request_id)
        if output is not None:
            self._inform("note_end", output)

    def _expire(self) -> None:
        """Abort jobs past their deadlines."""
        now_s = time.monotonic()
        with self._changed:
            late = [job for job in self._jobs.values() if job.deadline_s is not None and job.deadline_s <= now_s]
        for job in late:
            self._abort(job, DeadlineError("the request was not finished by its deadline, and aborted."))

    def _step(self) -> None:
        outputs = self._engine.step()
        step = self._engine.latest_step
        if step is not None and step is not self._latest_step:
            self._latest_step = step
            for request_id, *_ in step.chunks:
                if request_id in self._jobs:
                    self._jobs[request_id].is_scheduled = True
            self._inform("note_step", step)
        for output in outputs:
            if output.finished:
                self._inform("note_end", output)
            job = self._jobs.get(output.request_id)
            if job is not None and output.finished:
                self._end(job, output)
            elif job is not None:
                self._events.append((job, output))

    def _inform(self, method: str, what: StepTrace | RequestOutput) -> None:
        for observer in list(self._observers):
            try:
                getattr(observer, method)(what)
            except Exception:
                self._observers.remove(observer)
                logger.warning("%r raised and no longer observes; the engine continues", observer, exc_info=True)

    def _end(self, job: RequestStream, event: Event) -> bool:
        """Forget a job, with a last event for its stream (None: without one); False if it had ended already."""
        with self._changed:
            if self._jobs.get(job.request_id) is not job:
                return False
            del self._jobs[job.request_id]
            self._changed.notify_all()
        if event is not None:
            self._events.append((job, event))
        return True

    def _deliver(self) -> None:
        """Take the statistics and deliver the events together, so that a request is counted once, and no receiver finds
        outdated statistics."""
        stats, (events, self._events) = self._engine.stats(), (self._events, [])
        with self._changed:
            self._stats = stats
            for job, event in events:
                job.is_accepted |= not isinstance(event, Exception)
            deliver(events)

    def _end_all(self) -> None:
        """Abort all jobs, and report the engine's end to each."""
        with self._changed:
            self._is_stopped = True
            jobs, self._jobs, self._inbox = self._jobs, {}, []
            self._changed.notify_all()
        refusal = None
        try:
            for request_id in jobs:
                self._abort_in_engine(request_id)
        except Exception as error:
            refusal = f"{self._death()} Its requests could not be aborted either ({error!r}): open the model again."
        self.llm.refusal = refusal
        deliver([*self._events, *((job, self._death()) for job in jobs.values())])
