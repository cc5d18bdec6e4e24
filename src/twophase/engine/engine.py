"""The engine: requests in, one step at a time, outputs out. `Engine.step` is the life of a token."""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, final

from twophase.config import DEFAULT_TRACE_STEPS
from twophase.core.errors import InvalidRequestError
from twophase.core.plan import ScheduledChunk, SequenceUpdate, StepPlan, StepTrace
from twophase.core.request import Request, RequestOutput, SamplingParams
from twophase.engine.constraint import Grammar
from twophase.engine.metrics import EngineStats, StatLogger, StepRecord, record_step
from twophase.engine.model_run import BatchEntry, Results, isolate, plain_context, run_and_sample
from twophase.engine.request_state import Completion, Prompt, RequestState, TextCodec, check_params, parse_prompt
from twophase.engine.runner import Runner
from twophase.scheduling.limits import check_request
from twophase.scheduling.scheduler import Scheduler


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay SIGINT to the end of a `with` block, or of a decorated function, so that Ctrl-C cannot cut it in two.

    Python delivers signals to the main thread alone, so other threads need no protection. May be nested.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    pending: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if pending:
            previous(*pending[-1])


@final
class Engine:
    """Serves requests by continuous batching. Not thread-safe, except `prepare`.

    An exception while a sequence is computed, constrained, sampled or detokenised ends that sequence with finish reason
    'error' and frees its blocks; other sequences continue (see `isolate`). A Ctrl-C during a step takes effect after
    the step, and the next call returns the step's outputs.

    Args:
        scheduler: Has an allocator with as many blocks as the runner's K/V cache.
        vocab_size: Token ids are below it.
        codec: The model's tokenizer; None serves token ids only.
        eos_token_ids: The model's end-of-text ids.
        compile_grammar: Makes the grammar of a request's structured outputs, in any thread; raises InvalidRequestError
            if it cannot be enforced. None serves no structured outputs.
        speculator: Proposes drafts (twophase_features.speculation.speculator); None: no speculative decoding.
        seed: Seeds the generator that draws a seed for each request that has no seed.
        max_trace_steps: Steps kept in `trace`, the newest ones; None keeps all.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        *,
        vocab_size: int,
        codec: TextCodec | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        compile_grammar: Callable[[SamplingParams], Grammar] | None = None,
        speculator: Any = None,
        seed: int = 0,
        max_trace_steps: int | None = DEFAULT_TRACE_STEPS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner, self._scheduler, self.speculator = runner, scheduler, speculator
        scheduler.connect(runner)
        self._vocab_size, self._codec, self._eos_token_ids = vocab_size, codec, eos_token_ids
        self._compile_grammar = compile_grammar
        self._seeds, self._clock = random.Random(seed), clock
        self._requests: dict[str, RequestState] = {}
        self._stat_logger = StatLogger(max_trace_steps, scheduler)
        self._undelivered: list[RequestOutput] = []
        self._wake_s: int | float | None = None

    # -- requests

    def add_request(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None, **kwargs: Any) -> None:
        """`prepare` and `add` a request. Raises InvalidRequestError, and changes nothing, if it cannot be served."""
        self.add(self.prepare(request_id, prompt, params, **kwargs))

    def prepare(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        arrival_s: int | float | None = None,
        ttft_slo_s: int | float | None = None,
        stream: bool = True,
    ) -> RequestState:
        """A validated request for `add`: its prompt encoded, its grammar compiled. Any thread may call this. Raises
        InvalidRequestError for a wrong parameter, prompt or grammar, or if the request could never be served.

        Args:
            request_id: Unique among the unfinished requests.
            prompt, cache_salt, tenant, priority, ttft_slo_s: See `parse_prompt` and `Request`.
            arrival_s: Its arrival on the engine's clock; now if None.
            stream: Return its output after every step, not only at its end.
        """
        params = SamplingParams() if params is None else params
        max_model_len = self._scheduler.config.max_model_len
        ids, text, salt, tenant = parse_prompt(prompt, self._codec, self._vocab_size, max_model_len, cache_salt, tenant)
        check_params(params, self._codec, self._vocab_size)
        grammar = None
        if params.structured_outputs is not None:
            if self._compile_grammar is None:
                raise InvalidRequestError(
                    "structured_outputs need a tokenizer, but the engine has no tokenizer (skip_tokenizer_init)."
                )
            grammar = self._compile_grammar(params)
        arrival_s = self._clock() if arrival_s is None else arrival_s
        eos_ids = self._eos_token_ids
        request = Request(request_id, ids, params, arrival_s, eos_ids, text, priority, salt, ttft_slo_s, tenant)
        # Before the state, which has n completions.
        check_request(request, self._scheduler.config, self._scheduler.cache)
        return RequestState.start(request, stream, self._codec, grammar)

    @uninterrupted()
    def add(self, state: RequestState) -> None:
        """Queue a prepared request. Raises InvalidRequestError if an unfinished request has its id."""
        request, seed = state.request, state.request.sampling_params.seed
        self._scheduler.add(request)
        self._requests[request.request_id] = state
        # Last, because a refused request must not change the seeds of other requests.
        state.seed = self._seeds.getrandbits(63) if seed is None else seed

    @uninterrupted()
    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and free its blocks. Returns its output instead of `step`; None if unknown or finished."""
        state = self._requests.get(request_id)
        self._report(self._scheduler.abort(request_id))
        self._undelivered = [output for output in self._undelivered if output.request_id != request_id]
        return None if state is None else state.output()

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything left to do or to return."""
        return bool(self._requests or self._undelivered)

    @property
    def idle_s(self) -> float:
        """Seconds until the policy plans again, unless a request arrives; 0 if it does not (`Planner.wait_until`)."""
        return 0.0 if self._wake_s is None else max(0.0, self._wake_s - self._clock())

    # -- the life of a token

    def step(self) -> list[RequestOutput]:
        """Compute one token (several, where drafts are accepted) or a chunk of the prompt for each scheduled sequence.

        Returns outputs of the requests that ended in this step, and of streaming requests that got a token.
        """
        with uninterrupted():
            start_s = self._clock()
            plan = self._schedule(start_s)
            scheduled_s = self._clock()
            plan = self._draft(plan)
            results = self._run(plan)
            record = record_step(plan, self._scheduler.sequences, self._requests, (start_s, scheduled_s, self._clock()))
            finished = self._report(self._update(plan, results))
            self._note_step(record, results, finished)
        outputs, self._undelivered = self._undelivered, []
        return outputs

    def _schedule(self, now_s: float) -> StepPlan:
        plan = self._scheduler.schedule(now_s)
        self._wake_s = plan.wake_s
        return plan

    @plain_context()
    def _draft(self, plan: StepPlan) -> StepPlan:
        """The plan, with the drafts of the speculator."""
        if self.speculator is not None:
            plan = self.speculator.draft(plan, self._scheduler, self._entry, self._vocab_size)
        return plan

    @plain_context()
    def _run(self, plan: StepPlan) -> Results:
        """Sampled tokens, or an error, of each chunk, by seq_id; no tokens while a prefill continues."""
        results: Results = dict(plan.failed)
        batch = [self._entry(chunk) for chunk in plan.chunks]
        run = partial(run_and_sample, self._runner)
        for each, result in zip(batch, isolate(run, batch), strict=True):
            if isinstance(result, Exception) and each.chunk.num_drafts:
                # Run it again without drafts, which may be the cause: a draft must not fail its sequence.
                (result,) = isolate(run, [each._replace(chunk=each.chunk.without_drafts())])
            results[each.chunk.seq_id] = result
        return results

    def _entry(self, chunk: ScheduledChunk) -> BatchEntry:
        sequence = self._scheduler.sequences[chunk.seq_id]
        return BatchEntry(chunk, sequence, self._requests[sequence.request.request_id])

    def _update(self, plan: StepPlan, results: Results) -> list[SequenceUpdate]:
        """Pass the results to the scheduler: failures first, so that it skips failed sequences."""
        failed = {seq_id: result for seq_id, result in results.items() if isinstance(result, Exception)}
        updates = [update for seq_id, error in failed.items() for update in self._scheduler.fail(seq_id, error)]
        sampled = {seq_id: result for seq_id, result in results.items() if not isinstance(result, Exception)}
        return updates + self._scheduler.update(plan, sampled)

    def _report(self, updates: Sequence[SequenceUpdate]) -> tuple[tuple[str, int], ...]:
        """Pass tokens to their completions and queue outputs for `step`; returns (request id, index) of ended ones."""
        now_s = self._clock()
        finished: list[tuple[str, int]] = []
        touched: dict[str, RequestState] = {}
        for update in updates:
            state = touched[update.request_id] = self._requests[update.request_id]
            self._stat_logger.counts.num_output_tokens += state.take(update, now_s)
            completion = state.completions[update.index]
            if completion.finish_reason is not None:
                finished.append((update.request_id, update.index))
                self._end(update.seq_id, state, completion)
        self._undelivered += [state.output() for state in touched.values() if state.stream or state.is_finished]
        return tuple(finished)

    def _end(self, seq_id: int, state: RequestState, completion: Completion) -> None:
        """Forget a completion that ended, here and in the scheduler, which does not know of stop strings."""
        assert completion.finish_reason is not None
        self._scheduler.finish(seq_id, completion.finish_reason, completion.stop_reason, error=completion.error)
        if self.speculator is not None:
            self.speculator.forget(seq_id)
        self._stat_logger.note_end(completion.finish_reason)
        if state.is_finished:
            del self._requests[state.request.request_id]

    def _note_step(self, record: StepRecord, results: Results, finished: tuple[tuple[str, int], ...]) -> None:
        if not record.plan.is_empty:
            end_s = self._clock()
            if self.speculator is not None:
                self.speculator.note_results(record.plan, results, end_s - record.start_s)
            self._stat_logger.note_step(record, results, finished, end_s)

    # -- trace and statistics

    @property
    def trace(self) -> tuple[StepTrace, ...]:
        """Records of the newest `max_trace_steps` steps, oldest first."""
        return tuple(self._stat_logger.steps)

    @property
    def latest_step(self) -> StepTrace | None:
        """The newest entry of `trace`; None if it is empty."""
        return self._stat_logger.steps[-1] if self._stat_logger.steps else None

    def stats(self) -> EngineStats:
        return self._stat_logger.stats()

    def block_tables(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """Block ids and computed tokens of each running sequence, by request id ('id.index' for n > 1). -1 stands for
        a block that left the sliding window and was freed."""
        tables = {}
        for each in self._scheduler.sequences.values():
            if each.table is not None:
                id_, n = each.request.request_id, each.request.sampling_params.n
                name = id_ if n == 1 else f"{id_}.{each.index}"
                tables[name] = tuple(each.table.block_ids), each.num_computed_tokens
        return tables
