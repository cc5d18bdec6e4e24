"""Runs engine steps in a thread; outputs go to the streams of the requests."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, final, runtime_checkable

from twophase.core.errors import EngineDeadError, InvalidRequestError
from twophase.core.plan import StepTrace
from twophase.core.request import RequestOutput
from twophase.core.rules import TEXT, checked
from twophase.engine.engine import Engine
from twophase.engine.metrics import EngineStats
from twophase.engine.request_state import RequestState
from twophase_features.serving.errors import DeadlineError, DrainingError, QueueFullError
from twophase_features.serving.stream import Event, RequestStream, deliver

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
class EngineThread:
    """Runs `Engine.step` while requests are unfinished, and sleeps otherwise. Its methods may be called from any
    thread.

    Only this thread changes the engine, between two steps: other threads post commands. Two more threads prepare
    requests in order of arrival: one tokenizes text, the other compiles schemas to grammars, so neither steps nor an
    event loop wait for either. A request in preparation counts as waiting: it counts against `max_queue`, can be
    aborted, its deadline runs, and `drain` waits for it.

    If a step raises, the thread ends: `error` is set, and every unfinished job gets an `EngineDeadError`.

    Args:
        engine: No other thread may use the engine until this one has stopped.
        max_queue: Maximum number of requests that wait for their first step; None: unlimited.
        at_end: Called when the thread has stopped using the engine, with None, or with the reason why the engine is
            unusable.

    Attributes:
        error: The exception that ended the thread.
        observers: Told of steps and ends of requests.
        jobs: The unfinished ones, in order of arrival.
        stats: The engine's, as of the end of the latest turn.
        is_draining: No request is accepted any more.
    """

    def __init__(self, engine: Engine, max_queue: int | None, at_end: Callable[[str | None], None]) -> None:
        self.error: BaseException | None = None
        self.observers: list[Observer] = []
        self.stats: EngineStats = engine.stats()
        self.is_draining = False
        self._engine = engine
        self._max_queue = max_queue
        self._at_end = at_end
        self._with_text, self._with_grammar = ThreadPoolExecutor(1, "text"), ThreadPoolExecutor(1, "grammar")
        # Guards the next three fields; notified when one of these fields changes.
        self._changed = threading.Condition()
        self._inbox: list[Callable[[], object]] = []
        self.jobs: dict[str, RequestStream] = {}
        self._is_stopped = False
        self._events: list[tuple[RequestStream, Event]] = []  # of this turn
        self._latest_step: StepTrace | None = engine.latest_step
        self._thread = threading.Thread(target=self._run, name="twophase-engine", daemon=True)
        self._thread.start()

    # -- called from other threads

    @property
    def is_alive(self) -> bool:
        return self.error is None and not self._is_stopped

    @property
    def queue_age_s(self) -> float | None:
        """See `AsyncLLM`. Unlike `stats`, it grows while a step runs, so it also shows a step that hangs."""
        with self._changed:
            oldest = next((job for job in self.jobs.values() if not job.is_scheduled), None)
        return None if oldest is None else time.monotonic() - oldest.arrival_s

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place or blocks, and requests submitted since `stats` were taken."""
        with self._changed:
            return self.stats.num_waiting + sum(not job.is_accepted for job in self.jobs.values())

    def submit(self, job: RequestStream) -> None:
        """Hand over a request.

        Raises:
            EngineDeadError, DrainingError, QueueFullError: No request is accepted now.
            InvalidRequestError: Its id is not text, or in use. (Other faults arrive as events.)
        """
        checked("request_id", job.request_id, TEXT)
        with self._changed:
            self.check_acceptance()
            if job.request_id in self.jobs:
                raise InvalidRequestError(f"request id {job.request_id!r} is in use by an unfinished request.")
            self.jobs[job.request_id] = job
            self._changed.notify_all()  # its deadline may be the earliest
        job.abort = partial(self._post, partial(self._abort, job))
        has_grammar = getattr(job.params, "structured_outputs", None) is not None
        (self._with_grammar if has_grammar else self._with_text).submit(self._prepare, job)

    def check_acceptance(self) -> None:
        """Raises the error with which `submit` would refuse any request now."""
        if not self.is_alive:
            raise self._death()
        if self.is_draining:
            raise DrainingError("the engine is draining: it finishes accepted requests and accepts no new ones.")
        with self._changed:
            num_waiting = sum(not job.is_scheduled for job in self.jobs.values())
        if self._max_queue is not None and num_waiting >= self._max_queue:
            raise QueueFullError(
                f"at most {self._max_queue} requests may wait (max_queue), and {num_waiting} do; try again later."
            )

    def drain(self, timeout_s: float | int | None = None) -> bool:
        """Refuse new jobs and wait for the accepted ones; False if they took longer than `timeout_s`."""
        with self._changed:
            self.is_draining = True
            return self._changed.wait_for(lambda: not self.jobs, timeout_s)

    def stop(self) -> None:
        """End the thread after the step that is running; unfinished jobs get an `EngineDeadError`."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        for threads in (self._with_text, self._with_grammar):
            threads.shutdown(wait=False, cancel_futures=True)
        if threading.current_thread() is not self._thread:
            self._thread.join()

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

    # -- in the two threads that prepare requests

    def _prepare(self, job: RequestStream) -> None:
        if self.jobs.get(job.request_id) is not job:  # aborted, or past its deadline
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
        stats = self._engine.stats()
        with self._changed:  # together, so that a request is counted once, and no receiver finds outdated stats
            self.stats = stats
            self._deliver()
        return True

    def _max_sleep_s(self) -> float | None:
        """Seconds to sleep unless a command is posted; None: no limit."""
        limits_s = [job.deadline_s - time.monotonic() for job in self.jobs.values() if job.deadline_s is not None]
        if self._engine.has_unfinished_requests():
            limits_s.append(self._engine.idle_s)
        return max(0.0, min(limits_s)) if limits_s else None

    def _add(self, job: RequestStream, prepared: RequestState) -> None:
        if self.jobs.get(job.request_id) is not job:  # aborted, or past its deadline
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
            late = [job for job in self.jobs.values() if job.deadline_s is not None and job.deadline_s <= now_s]
        for job in late:
            self._abort(job, DeadlineError("the request was not finished by its deadline, and aborted."))

    def _step(self) -> None:
        outputs = self._engine.step()
        step = self._engine.latest_step
        if step is not None and step is not self._latest_step:
            self._latest_step = step
            for request_id, *_ in step.chunks:
                if request_id in self.jobs:
                    self.jobs[request_id].is_scheduled = True
            self._inform("note_step", step)
        for output in outputs:
            if output.finished:
                self._inform("note_end", output)
            job = self.jobs.get(output.request_id)
            if job is not None and output.finished:
                self._end(job, output)
            elif job is not None:
                self._events.append((job, output))

    def _inform(self, method: str, what: StepTrace | RequestOutput) -> None:
        for observer in list(self.observers):
            try:
                getattr(observer, method)(what)
            except Exception:
                self.observers.remove(observer)
                logger.warning("%r raised and no longer observes; the engine continues", observer, exc_info=True)

    def _end(self, job: RequestStream, event: Event) -> bool:
        """Forget a job, with a last event for its stream (None: without one); False if it had ended already."""
        with self._changed:
            if self.jobs.get(job.request_id) is not job:
                return False
            del self.jobs[job.request_id]
            self._changed.notify_all()
        if event is not None:
            self._events.append((job, event))
        return True

    def _deliver(self) -> None:
        events, self._events = self._events, []
        deliver(events)

    def _end_all(self) -> None:
        """Abort all jobs, and report the engine's end to each."""
        with self._changed:
            self._is_stopped = True
            jobs, self.jobs, self._inbox = self.jobs, {}, []
            self._changed.notify_all()
        why_not = None
        try:
            for request_id in jobs:
                self._abort_in_engine(request_id)
        except Exception as error:
            why_not = f"{self._death()} Its requests could not be aborted either ({error!r}): open the model again."
        self._at_end(why_not)
        self._events += [(job, self._death()) for job in jobs.values()]
        self._deliver()
