"""A thread that runs an engine's steps. Others hand it requests, and a callback tells them what came of these."""

import heapq
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, final, runtime_checkable

from twophase.core.errors import (
    DeadlineError,
    DrainingError,
    EngineDeadError,
    InvalidRequestError,
    QueueFullError,
)
from twophase.core.outputs import RequestOutput, StepTrace
from twophase.core.rules import TEXT, checked
from twophase.core.sampling_params import SamplingParams
from twophase.engine.engine import Engine, PreparedRequest
from twophase.engine.metrics import EngineStats
from twophase.engine.prompts import Prompt

logger = logging.getLogger(__name__)

MAX_ENDED = 64  # jobs that have ended and are kept until their deadline, besides one for each that has not


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """A request on its way to the engine.

    Attributes:
        request_id: Unique among the unfinished ones.
        options: Of `Engine.prepare`, by name.
        deadline_s: On the engine's clock; None: it has all the time in the world.
        listener: Whoever is told of it; only the callback knows what that is.
    """

    request_id: str
    prompt: Prompt
    params: SamplingParams | None
    options: Mapping[str, Any] = field(default_factory=dict)
    deadline_s: float | None = None
    listener: Any = None


# What is told of a job: None, once, when the engine has accepted it; then its outputs. Or an error, which is the last.
News = tuple[Job, RequestOutput | Exception | None]


@runtime_checkable
class Observer(Protocol):
    """Sees what the engine does, in the engine's thread: between two steps, so it must be quick.

    One that raises is removed, with a warning in the log; the requests go on.
    """

    def note_step(self, step: StepTrace) -> None: ...

    def note_end(self, output: RequestOutput) -> None:
        """A request ended: finished, aborted, failed or past its deadline. `output` is what it had."""
        ...


@final
class EngineThread:
    """Runs `Engine.step` as long as something is unfinished, and sleeps otherwise. Its methods may be called anywhere.

    Everything that changes the engine happens in this thread, between two steps. Requests are prepared before, each in
    the order of arrival: text becomes tokens in one thread and schemas become grammars in another, so neither waits for
    the other, and neither steps nor an event loop wait for them. A request that is prepared is one that waits: it
    counts against `max_queue`, can be aborted, its deadline runs, and `drain` waits for it.

    If a step raises, the thread ends: `error` is set, and every unfinished job gets an `EngineDeadError`. A fork of the
    process has no such thread: there, too, `error` is set.

    Args:
        engine: Nobody else may use it until the thread has stopped.
        tell: Called in this thread with what a step, or an accepted request, has brought. It must not block.
        max_queue: Requests that may wait for their first step; None: any number.
        at_end: Called when the engine is free again, with None, or with the reason why nobody can use it.
    """

    def __init__(
        self,
        engine: Engine,
        tell: Callable[[Sequence[News]], None],
        *,
        max_queue: int | None = None,
        at_end: Callable[[str | None], None] = lambda why_not: None,
    ) -> None:
        self.error: BaseException | None = None
        self.observers: list[Observer] = []
        self.stats: EngineStats = engine.stats()  # as of the end of the latest turn
        self._engine = engine
        self._tell = tell
        self._max_queue = max_queue
        self._at_end = at_end
        # Guards what is below, up to the next comment; notified when one of it changes.
        self._changed = threading.Condition()
        self._inbox: list[Callable[[], object]] = []
        self._jobs: dict[str, Job] = {}  # unfinished
        # Those among them that no step has computed anything of, and since when they wait, the oldest first.
        self._unscheduled: dict[str, float] = {}
        self._unseen: set[Job] = set()  # those that are not in `stats` yet
        self._is_draining = False
        self._is_stopped = False
        self._with_text, self._with_grammar = ThreadPoolExecutor(1, "text"), ThreadPoolExecutor(1, "grammar")
        # Only the thread itself uses these.
        self._added: list[Job] = []  # in this turn
        self._news: list[News] = []
        self._deadlines: list[tuple[float, int, Job]] = []  # a heap; the number decides between equal ones
        self._numbers = itertools.count()
        self._latest_step: StepTrace | None = engine.latest_step
        self._thread = threading.Thread(target=self._run, name="twophase-engine", daemon=True)
        _THREADS.add(self)
        self._thread.start()

    # -- for the others

    @property
    def is_alive(self) -> bool:
        return self.error is None and not self._is_stopped

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def num_unfinished(self) -> int:
        return len(self._jobs)

    @property
    def queue_age_s(self) -> float | None:
        """How long the oldest request has waited of which no step has computed anything; None: there is none.

        Unlike `stats` it is of this moment: it grows while a step runs, one that never ends included.
        """
        with self._changed:
            since_s = next(iter(self._unscheduled.values()), None)
        return None if since_s is None else time.monotonic() - since_s

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place or blocks, and the requests that have come since `stats` were taken."""
        with self._changed:
            return self.stats.num_waiting + len(self._unseen)

    def submit(self, job: Job) -> None:
        """Hand over a request.

        Raises:
            EngineDeadError, DrainingError, QueueFullError: Nothing is accepted now.
            InvalidRequestError: Its id is no text, or in use. (What else is wrong with it, `tell` will say.)
        """
        checked("request_id", job.request_id, TEXT)
        with self._changed:
            self.check_acceptance()
            if job.request_id in self._jobs:
                raise InvalidRequestError(f"request id {job.request_id!r} is in use by an unfinished request.")
            self._jobs[job.request_id] = job
            self._unscheduled[job.request_id] = time.monotonic()
            self._unseen.add(job)
            if job.deadline_s is not None:
                self._post(lambda: self._note_deadline(job))
            has_grammar = getattr(job.params, "structured_outputs", None) is not None
            (self._with_grammar if has_grammar else self._with_text).submit(self._prepare, job)

    def check_acceptance(self) -> None:
        """Raises what `submit` would raise now, whatever the request."""
        if not self.is_alive:
            raise self._death()
        if self._is_draining:
            raise DrainingError("the engine is draining: it finishes what it has accepted, and accepts nothing new.")
        if self._max_queue is not None and len(self._unscheduled) >= self._max_queue:
            raise QueueFullError(
                f"at most {self._max_queue} requests may wait (max_queue), and {len(self._unscheduled)} do; try again "
                f"later."
            )

    def abort(self, job: Job) -> None:
        """End a job before the next step, if it is unfinished; nothing more is told of it."""
        with self._changed:
            if self._jobs.get(job.request_id) is job:
                self._post(lambda: self._abort(job))

    def drain(self, timeout_s: float | int | None = None) -> bool:
        """Accept nothing new, and wait until what was accepted is finished; False if the time was not enough."""
        with self._changed:
            self._is_draining = True
            return self._changed.wait_for(lambda: not self._jobs, timeout_s)

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
        self._inbox.append(command)
        self._changed.notify_all()

    def _death(self) -> EngineDeadError:
        if self.error is None:
            return EngineDeadError("the engine was closed.")
        if isinstance(self.error, EngineDeadError):
            return EngineDeadError(str(self.error))
        return EngineDeadError(
            f"the engine's thread died of {type(self.error).__name__}: {self.error}. Nothing can be served any more; "
            f"start it anew."
        )

    # -- in a thread that prepares

    def _prepare(self, job: Job) -> None:
        if self._jobs.get(job.request_id) is not job:  # aborted, or past its deadline
            return
        try:
            prepared = self._engine.prepare(job.request_id, job.prompt, job.params, **job.options)
        except BaseException as error:  # the panic of a library is no Exception
            refusal = error if isinstance(error, Exception) else RuntimeError(repr(error))
            command = partial(self._refuse, job, refusal)
        else:
            command = partial(self._add, job, prepared)
        with self._changed:
            self._post(command)

    # -- in the thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            self.error = error
        finally:
            self._end_all()

    def _turn(self) -> bool:
        """Do what others asked for, then a step, and tell of both; False when it is time to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._is_stopped, self._patience_s())
            if self._is_stopped:
                return False
            commands, self._inbox = self._inbox, []
        for command in commands:
            command()
        self._expire()
        if self._engine.has_unfinished_requests():
            self._step()
        stats = self._engine.stats()
        with self._changed:  # before anybody hears of it, so that nobody finds it out of date
            self.stats = stats
            self._unseen.difference_update(self._added)
        self._added = []
        self._tell_news()
        return True

    def _patience_s(self) -> float | None:
        """How long there is nothing to do unless somebody comes; None: for ever."""
        patience_s = self._engine.idle_s if self._engine.has_unfinished_requests() else None
        if patience_s != 0 and self._deadlines:
            left_s = max(0.0, self._deadlines[0][0] - time.monotonic())
            patience_s = left_s if patience_s is None else min(patience_s, left_s)
        return patience_s

    def _note_deadline(self, job: Job) -> None:
        assert job.deadline_s is not None
        heapq.heappush(self._deadlines, (job.deadline_s, next(self._numbers), job))

    def _add(self, job: Job, prepared: PreparedRequest) -> None:
        if self._jobs.get(job.request_id) is not job:  # aborted, or past its deadline
            return
        try:
            self._engine.add(prepared)
        except Exception as error:  # of this request; the engine is as before
            self._refuse(job, error)
            return
        self._added.append(job)
        self._news.append((job, None))

    def _refuse(self, job: Job, error: Exception) -> None:
        if self._jobs.get(job.request_id) is job:
            self._forget(job)
            self._news.append((job, error))

    def _abort(self, job: Job) -> bool:
        """False if it is not unfinished any more."""
        if self._jobs.get(job.request_id) is not job:
            return False
        self._forget(job)
        self._abort_in_engine(job.request_id)
        return True

    def _abort_in_engine(self, request_id: str) -> None:
        output = self._engine.abort(request_id)
        if output is not None:
            self._note_end(output)

    def _expire(self) -> None:
        """Abort what is past its deadline. Jobs that have ended leave the heap when they outnumber the others."""
        if len(self._deadlines) > 2 * len(self._jobs) + MAX_ENDED:
            self._deadlines = [entry for entry in self._deadlines if self._jobs.get(entry[2].request_id) is entry[2]]
            heapq.heapify(self._deadlines)
        now_s = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            job = heapq.heappop(self._deadlines)[2]
            if self._abort(job):
                self._news.append((job, DeadlineError("the request was not finished by its deadline, and aborted.")))

    def _step(self) -> None:
        outputs = self._engine.step()
        step = self._engine.latest_step
        if step is not None and step is not self._latest_step:
            self._latest_step = step
            self._note_scheduled(step)
            self._inform(lambda observer: observer.note_step(step))
        for output in outputs:
            job = self._jobs.get(output.request_id)
            if output.finished:
                self._note_end(output)
            if job is not None:
                self._news.append((job, output))
                if output.finished:
                    self._forget(job)

    def _note_scheduled(self, step: StepTrace) -> None:
        if self._unscheduled:
            with self._changed:
                for request_id, *_ in step.chunks:
                    self._unscheduled.pop(request_id, None)

    def _note_end(self, output: RequestOutput) -> None:
        self._inform(lambda observer: observer.note_end(output))

    def _inform(self, tell: Callable[[Observer], None]) -> None:
        for observer in list(self.observers):
            try:
                tell(observer)
            except Exception:
                self.observers.remove(observer)
                logger.warning("%r raised, and observes no more; the engine goes on", observer, exc_info=True)

    def _forget(self, job: Job) -> None:
        with self._changed:
            del self._jobs[job.request_id]
            self._unscheduled.pop(job.request_id, None)
            self._unseen.discard(job)
            self._changed.notify_all()

    def _tell_news(self) -> None:
        if self._news:
            news, self._news = self._news, []
            self._tell(news)

    def _end_all(self) -> None:
        """Free the engine of all jobs, and tell those who wait."""
        with self._changed:
            self._is_stopped = True
            _THREADS.discard(self)
            jobs = self._clear()
            self._changed.notify_all()
        self._at_end(self._abort_all(jobs))
        self._news += [(job, self._death()) for job in jobs.values()]
        self._tell_news()

    def _clear(self) -> dict[str, Job]:
        """Forget all jobs; returns those that were unfinished."""
        jobs, self._jobs, self._inbox = self._jobs, {}, []
        self._unscheduled.clear()
        self._unseen.clear()
        return jobs

    def _abort_all(self, jobs: Mapping[str, Job]) -> str | None:
        """Returns why the engine cannot be used any more, if that failed."""
        try:
            for request_id in jobs:
                self._abort_in_engine(request_id)
            return None
        except Exception as error:
            return f"{self._death()} Its requests could not be aborted either ({error!r}): open the model anew."

    def end_in_fork(self) -> None:
        """Of the process, which has only the thread that forked; another may have locked `_changed` for ever."""
        self._changed = threading.Condition()
        self._clear()
        self.error = EngineDeadError(
            "this process is a fork of the one that the engine's thread runs in, and has no such thread. Start it with "
            "multiprocessing's 'spawn', and open the model in it."
        )
        self._at_end(str(self.error))


_THREADS: "weakref.WeakSet[EngineThread]" = weakref.WeakSet()


def _end_in_fork() -> None:
    for thread in list(_THREADS):
        thread.end_in_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_end_in_fork)
