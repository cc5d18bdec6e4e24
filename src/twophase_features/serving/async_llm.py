"""`AsyncLLM`: the engine for callers in an event loop, named after vLLM's class."""

import asyncio
import itertools
import weakref
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any, final

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase.core.plan import StepTrace
from twophase.core.request import RequestOutput, SamplingParams
from twophase.core.rules import DURATION, checked, optional, whole_number
from twophase.engine.metrics import EngineStats
from twophase.engine.request_state import Prompt
from twophase.llm import LLM
from twophase.model.tokenizer import Tokenizer
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_features.serving.openmp import release_openmp_workers
from twophase_features.serving.stream import RequestStream
from twophase_features.serving.thread import EngineThread, Observer

MAX_QUEUE = optional(whole_number(at_least=1))
DEADLINE = optional(DURATION)


@final
class AsyncLLM:
    """An engine whose loop runs in a thread of its own; requests come from any event loop.

    Nothing here blocks an event loop, or a step: text becomes tokens, and schemas grammars, in threads of their own.

    Args:
        model, config, options: As `LLM`.
        max_queue: Maximum number of requests that wait for their first step, requests in preparation included; further
            requests are refused. None: unlimited.

    Attributes:
        llm: The owner of the engine. Read its attributes; do not call its methods.
        model_name: The hub id or the folder's name.

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
        self._start(llm, max_queue, Path(model).name if Path(model).is_dir() else str(model))
        self._close_llm = llm.close

    @classmethod
    def of(cls, llm: LLM, *, max_queue: int | None = None) -> "AsyncLLM":
        """Run the engine of an existing LLM, which can be used again after `close`.

        Raises:
            ConfigError: `max_queue` breaks its rule.
            InvalidRequestError: The LLM has unfinished requests, or an AsyncLLM runs its engine already.
        """
        made = cls.__new__(cls)
        max_queue = checked("max_queue", max_queue, MAX_QUEUE, ConfigError)
        made._start(llm, max_queue, llm.model_dir.name)
        made._close_llm = lambda: None
        return made

    def _start(self, llm: LLM, max_queue: int | None, model_name: str) -> None:
        self.llm, self.model_name = llm, model_name
        self._ids = itertools.count()
        release_openmp_workers()  # this thread has loaded the model; from now on another thread computes
        llm.check_usable()
        if llm.engine.has_unfinished_requests():
            raise InvalidRequestError("the LLM has unfinished requests; finish or abort them first.")
        llm.refusal = "an AsyncLLM runs this LLM's engine: send requests to it, or `close` it first."
        self._thread = EngineThread(llm.engine, max_queue, partial(setattr, llm, "refusal"))
        self._stop = weakref.finalize(self, self._thread.stop)  # at the latest when the interpreter ends

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
        request_id = f"async-{next(self._ids)}" if request_id is None else request_id
        outputs = RequestStream(request_id, prompt, sampling_params, options, deadline_s)
        self._thread.submit(outputs)
        try:
            await outputs.accepted()
        except BaseException:  # cancelled: the engine may have accepted it already
            outputs.abort()
            raise
        return outputs

    def check_acceptance(self) -> None:
        """Whether a request would be accepted now, before there is one; a server asks before it reads a body. Raises
        EngineDeadError, DrainingError or QueueFullError as `generate`."""
        self._thread.check_acceptance()

    # -- life cycle

    @property
    def is_alive(self) -> bool:
        """Whether requests are served: the thread has neither died nor been closed."""
        return self._thread.is_alive

    @property
    def is_draining(self) -> bool:
        return self._thread.is_draining

    @property
    def error(self) -> BaseException | None:
        """The exception that ended the engine's thread."""
        return self._thread.error

    @property
    def num_unfinished(self) -> int:
        """Accepted requests that have not ended."""
        return len(self._thread.jobs)

    async def drain(self, timeout_s: float | int | None = None) -> bool:
        """Refuse new requests and wait for the accepted ones; False if they took longer than `timeout_s`."""
        return await asyncio.to_thread(self._thread.drain, timeout_s)

    def close(self) -> None:
        """End the engine's thread, and an LLM that was made here. Unfinished requests raise `EngineDeadError`.

        Waits for the step that is running; in an event loop, `async with` or `asyncio.to_thread` wait elsewhere.
        """
        self._stop()
        self._close_llm()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    # -- observation

    def stats(self) -> EngineStats:
        """Statistics as of the end of the latest step. Does not wait for a step."""
        return self._thread.stats

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place or blocks; includes requests submitted during the running step."""
        return self._thread.num_waiting

    @property
    def queue_age_s(self) -> float | None:
        """Seconds that the oldest never-scheduled request has waited; None if every request has been scheduled.

        It grows while a step runs.
        """
        return self._thread.queue_age_s

    @property
    def trace(self) -> tuple[StepTrace, ...]:
        return self.llm.engine.trace

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.llm.tokenizer

    def observe(self, observer: Observer) -> None:
        """Report each step and each request's end to `observer` from now on, until it raises."""
        self._thread.observers.append(observer)
