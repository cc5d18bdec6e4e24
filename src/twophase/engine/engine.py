"""The engine: requests in, one step at a time, outputs out. `Engine.step` is the life of a token."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, final

from twophase.config import DEFAULT_TRACE_STEPS
from twophase.core.outputs import RequestOutput, StepTrace, TokenLogprobs
from twophase.core.plan import SampledToken, ScheduledChunk, StepPlan
from twophase.core.request import Request
from twophase.core.sampling_params import SamplingParams
from twophase.engine._context import plain_context
from twophase.engine._interrupts import uninterrupted
from twophase.engine._isolation import isolate
from twophase.engine.metrics import EngineStats, StatLogger, StepTimes, TraceChunk
from twophase.engine.prompt_logprobs import PromptScorer, ScoredRows
from twophase.engine.prompts import (
    Prompt,
    TextCodec,
    cache_salt_of,
    check_params,
    compile_grammar,
    tenant_of,
    token_ids_of,
)
from twophase.engine.rejection import accepted_run
from twophase.engine.request_state import RequestState
from twophase.engine.runner import Runner
from twophase.engine.sampler import SampleRow, SamplingError, sample
from twophase.scheduling.scheduler import Scheduler, SequenceUpdate
from twophase_features.speculation.drafters import DraftRequest
from twophase_features.speculation.speculator import Speculator
from twophase_features.structured_outputs.guidance import Grammar, Guide

Sampled = tuple[SampledToken, ...]
Scored = tuple[TokenLogprobs, ...]


class PreparedRequest(NamedTuple):
    """A request whose text is tokens and whose schema is a grammar: all that is left is to add it."""

    request: Request
    grammar: Grammar | None
    stream: bool


@final
class Engine:
    """Serves requests by continuous batching. Not thread-safe, but for `prepare`.

    Faults: an exception while a sequence is computed, guided, sampled or detokenised ends that sequence with finish
    reason 'error' and frees its blocks; the others go on (see `isolate`). A Ctrl-C during a step is felt when the step
    has happened, and the next call returns its outputs.

    Args:
        runner: The model with its K/V cache.
        scheduler: Over a cache manager of as many blocks as the runner's.
        vocab_size: Token ids are below it.
        codec: The model's tokenizer; None serves token ids only.
        eos_token_ids: The model's end-of-text ids.
        guidance: Compiles grammars for the codec's vocabulary; None serves no structured outputs.
        speculator: Guesses tokens ahead; None computes one token of a sequence after the other.
        seed: Of the generator that draws a seed for each request that has none.
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
        guidance: Any = None,
        speculator: Speculator | None = None,
        seed: int = 0,
        max_trace_steps: int | None = DEFAULT_TRACE_STEPS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        scheduler.connect(runner)
        self._vocab_size = vocab_size
        self._codec = codec
        self._eos_token_ids = eos_token_ids
        self._guidance = guidance
        self.speculator = speculator
        self._seeds = random.Random(seed)
        self._clock = clock
        self._requests: dict[str, RequestState] = {}
        self._stat_logger = StatLogger(max_trace_steps)
        self._undelivered: list[RequestOutput] = []
        self._wake_s: int | float | None = None

    # -- requests

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Any,
    ) -> None:
        """Queue a request: `prepare` it, and `add` it.

        Args:
            request_id, prompt, params, options: As of `prepare`.

        Raises:
            InvalidRequestError: It could never be served as asked; nothing has changed.
        """
        self.add(self.prepare(request_id, prompt, params, **options))

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
    ) -> PreparedRequest:
        """Make tokens of its text and a grammar of its schema. Any thread may do this, also during a step.

        Args:
            request_id: Unique among the unfinished requests.
            prompt: Text, {"prompt": ...} or {"prompt_token_ids": [...]}, the latter two with a "cache_salt" and
                a "tenant" if wanted.
            priority, cache_salt, tenant, ttft_slo_s: See `Request`. The prompt's own salt and tenant count if none is
                given here.
            arrival_s: When it came, on the engine's clock; now if None.
            stream: Report its progress after every step, instead of its end alone.

        Raises:
            InvalidRequestError: It could never be served as asked, by any engine of this model.
        """
        params = SamplingParams() if params is None else params
        token_ids, text = token_ids_of(prompt, self._codec, self._vocab_size, self._scheduler.config.max_model_len)
        check_params(params, self._codec, self._vocab_size)
        grammar = compile_grammar(params, self._guidance)
        request = Request(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling_params=params,
            arrival_s=self._clock() if arrival_s is None else arrival_s,
            eos_token_ids=self._eos_token_ids,
            prompt=text,
            priority=priority,
            cache_salt=cache_salt_of(prompt) if isinstance(cache_salt, str) and not cache_salt else cache_salt,
            ttft_slo_s=ttft_slo_s,
            tenant=tenant_of(prompt) if isinstance(tenant, str) and not tenant else tenant,
        )
        return PreparedRequest(request, grammar, stream)

    @uninterrupted()
    def add(self, prepared: PreparedRequest) -> None:
        """Queue what is prepared; raises InvalidRequestError as `add_request`."""
        request, grammar, stream = prepared
        request_id, params = request.request_id, request.sampling_params
        # Before the state, which has a part for each of the n completions: only now is n known to be possible.
        self._scheduler.add(request)
        try:
            state = RequestState.start(request, stream, self._codec, grammar)
        except BaseException:
            self._scheduler.abort(request_id)
            raise
        self._requests[request_id] = state
        self._stat_logger.waiting.add(request.arrival_s, state)
        # Only now: a request that was refused draws no seed, so it does not change those of the others.
        state.seed = self._seeds.getrandbits(63) if params.seed is None else params.seed

    @uninterrupted()
    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and free its blocks; returns what it had, or None if it is not unfinished.

        What an interrupted step has left undelivered of it is not delivered any more.
        """
        state = self._requests.get(request_id)
        for update in self._scheduler.abort(request_id):
            self._apply(update)
        self._undelivered = [output for output in self._undelivered if output.request_id != request_id]
        return None if state is None else state.output()

    def state_of(self, request_id: str) -> RequestState:
        """What is known of an unfinished request; read-only."""
        return self._requests[request_id]

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything left to do or to return."""
        return bool(self._requests or self._undelivered)

    @property
    def idle_s(self) -> float:
        """Seconds for which `step` has nothing to do unless a request comes: the policy waits, for company say."""
        return 0.0 if self._wake_s is None else max(0.0, self._wake_s - self._clock())

    # -- the life of a token

    def step(self) -> list[RequestOutput]:
        """Compute one token (several, where drafts were right), or a chunk of the prompt, for each scheduled sequence.

        Returns the requests that ended in this step, and those that stream and got a token.
        """
        with uninterrupted():
            start_s = self._clock()
            plan = self._schedule(start_s)
            scheduled_s = self._clock()
            plan = self._draft(plan)
            results, scored = self._run(plan)
            times = StepTimes(start_s, scheduled_s, self._clock())
            chunks, preempted = self._describe(plan, scheduled_s)
            self._note_prompt_logprobs(plan, scored)
            finished = self._report(self._update(plan, results))
            if not plan.is_empty:
                end_s = self._clock()
                drafts = self._note_drafts(plan, results, end_s - start_s)
                self._stat_logger.note_step(plan, chunks, preempted, finished, times, end_s, self._scheduler, drafts)
        outputs, self._undelivered = self._undelivered, []
        return outputs

    def _schedule(self, now_s: float) -> StepPlan:
        plan = self._scheduler.schedule(now_s)
        if self.speculator is not None and self.speculator.is_on:
            plan = self._scheduler.reserve_drafts(self.speculator.max_drafts)
        self._wake_s = plan.wake_s
        return plan

    @plain_context()
    def _draft(self, plan: StepPlan) -> StepPlan:
        """The plan with drafts in the room that it has for them."""
        if self.speculator is None:
            return plan
        drafts = self.speculator.draft(plan, self._draft_request, self._vocab_size)
        return self._scheduler.put_drafts(drafts)

    def _draft_request(self, chunk: ScheduledChunk) -> DraftRequest:
        sequence = self._scheduler.sequences[chunk.seq_id]
        guide, so_far = self._guide_of(chunk.seq_id), (sequence.token_ids, sequence.num_prompt_tokens)
        return DraftRequest(
            chunk,
            sequence.token_ids,
            sequence.stop_token_ids,
            row_after=partial(self._sample_row, chunk.seq_id, 1),
            num_allowed=len if guide is None else partial(guide.num_allowed, *so_far),
        )

    @plain_context()
    def _run(self, plan: StepPlan) -> tuple[dict[int, Sampled | Exception], dict[int, Scored]]:
        """Do what is planned; what came of each chunk, and log-probabilities of its prompt tokens, by seq_id."""
        results: dict[int, Sampled | Exception] = dict(plan.failed)
        scored: dict[int, Scored] = {}
        compute = partial(self._compute, scored)
        chunks = list(self._with_scores(plan))
        for chunk, result in zip(chunks, isolate(compute, chunks), strict=True):
            if isinstance(result, Exception) and chunk.num_drafts:
                # Its drafts may be to blame, and they must harm no other sequence.
                (result,) = isolate(compute, [chunk.without_drafts()])
            results[chunk.seq_id] = result
        return results, scored

    def _with_scores(self, plan: StepPlan) -> Iterator[ScheduledChunk]:
        """The plan's chunks, and in those of prompts how many tokens are scored."""
        num_decodes = plan.num_decodes + plan.num_verifying
        yield from plan.chunks[:num_decodes]
        for chunk in plan.chunks[num_decodes:]:
            state = self._requests[self._scheduler.sequences[chunk.seq_id].request.request_id]
            yield chunk._replace(num_scored=state.num_to_score(chunk.start, len(chunk.token_ids)))

    def _note_prompt_logprobs(self, plan: StepPlan, scored: Mapping[int, Scored]) -> None:
        for chunk in plan.chunks:
            if chunk.seq_id in scored:
                state = self._requests[self._scheduler.sequences[chunk.seq_id].request.request_id]
                state.note_prompt_logprobs(chunk.start, scored[chunk.seq_id])

    def _note_drafts(
        self, plan: StepPlan, results: Mapping[int, Sampled | Exception], elapsed_s: float
    ) -> tuple[int, int]:
        """Tell the speculator how it went; returns drafts and accepted ones."""
        if self.speculator is None:
            return 0, 0
        runs = {seq_id: result for seq_id, result in results.items() if not isinstance(result, Exception)}
        return self.speculator.note_results(plan, runs, elapsed_s)

    def _compute(self, scored: dict[int, Scored], chunks: Sequence[ScheduledChunk]) -> list[Sampled | SamplingError]:
        """Run the model and sample: one result per chunk, empty for a prefill that goes on. Safe to repeat.

        Log-probabilities of prompt tokens are put into `scored`, by seq_id.
        """
        scoring = [chunk for chunk in chunks if chunk.num_scored]
        scorer = PromptScorer([self._scored_rows(chunk) for chunk in scoring])
        logits = self._runner.run(chunks, scorer.take)
        # Only now: on a GPU the grammars find their masks while the model is still computing.
        rows = list(chain.from_iterable(map(self._sample_rows, chunks)))
        sampled = iter(() if logits is None else sample(logits, rows))
        scored |= {chunk.seq_id: entries for chunk, entries in zip(scoring, scorer.results(), strict=True)}
        return [self._result(chunk, sampled) for chunk in chunks]

    def _scored_rows(self, chunk: ScheduledChunk) -> ScoredRows:
        request = self._scheduler.sequences[chunk.seq_id].request
        known, num_top = self._requests[request.request_id].prompt_logprobs, request.sampling_params.prompt_logprobs
        assert known is not None
        assert num_top is not None
        first = chunk.start + 1
        assert first <= len(known), f"prompt positions from {len(known) - 1} to {chunk.start} were never computed"
        return ScoredRows(request.prompt_token_ids[first : first + chunk.num_scored], num_top)

    def _sample_rows(self, chunk: ScheduledChunk) -> list[SampleRow]:
        """One row for each token that is drawn, or for all that a prompt's completions draw alike."""
        if not chunk.num_samples:
            return []
        drafts = chunk.draft_ids
        return [self._sample_row(chunk.seq_id, chunk.num_samples, drafts[:i]) for i in range(len(drafts) + 1)]

    def _sample_row(self, seq_id: int, num_samples: int, drafts: Sequence[int] = ()) -> SampleRow:
        """How the token after a sequence's newest one, or after drafts behind that, is drawn."""
        sequence = self._scheduler.sequences[seq_id]
        state, guide = self._requests[sequence.request.request_id], self._guide_of(seq_id)
        token_ids, num_prompt_tokens = sequence.token_ids, sequence.num_prompt_tokens
        params, position = sequence.request.sampling_params, len(token_ids) + len(drafts) - num_prompt_tokens
        return SampleRow(
            params,
            state.seed,
            first_index=sequence.index,
            position=position,
            num_samples=num_samples,
            token_ids=[*token_ids, *drafts] if drafts else token_ids,
            allowed=None if guide is None else guide.allowed_after(token_ids, num_prompt_tokens, drafts),
            banned=sequence.stop_token_ids if position < params.min_tokens else (),
            bias=state.bias,
        )

    def _guide_of(self, seq_id: int) -> Guide | None:
        sequence = self._scheduler.sequences[seq_id]
        state = self._requests[sequence.request.request_id]
        return state.completions[sequence.index].guide

    def _result(self, chunk: ScheduledChunk, sampled: Iterator[Sampled | SamplingError]) -> Sampled | SamplingError:
        """What a chunk yields, from what was drawn of its rows, the next of `sampled`."""
        if not chunk.num_drafts:
            return next(sampled) if chunk.num_samples else ()
        return accepted_run(list(islice(sampled, chunk.num_drafts + 1)), chunk.draft_ids)

    def _update(self, plan: StepPlan, results: dict[int, Sampled | Exception]) -> list[SequenceUpdate]:
        """Tell the scheduler what came of the plan: failures first, so that it leaves them out of the rest."""
        updates: list[SequenceUpdate] = []
        for seq_id, result in results.items():
            if isinstance(result, Exception):
                updates += self._scheduler.fail(seq_id, result)
        sampled = {seq_id: result for seq_id, result in results.items() if not isinstance(result, Exception)}
        return updates + self._scheduler.update(plan, sampled)

    def _report(self, updates: Sequence[SequenceUpdate]) -> tuple[tuple[str, int], ...]:
        """Queue the outputs that `step` returns; tells which completions ended."""
        finished: list[tuple[str, int]] = []
        touched: dict[str, RequestState] = {}
        for update in updates:
            touched[update.request_id] = self._requests[update.request_id]
            if self._apply(update):
                finished.append((update.request_id, update.index))
        self._undelivered += [state.output() for state in touched.values() if state.stream or state.is_finished]
        return tuple(finished)

    def _apply(self, update: SequenceUpdate) -> bool:
        """Give an update's tokens to its completion, and end it if it is over; a stop string may end it here."""
        state = self._requests[update.request_id]
        completion = state.completions[update.index]
        now_s = self._clock()
        num_before = len(completion.token_ids)
        reason, stop_reason, error = update.finish_reason, update.stop_reason, update.error
        try:
            matched = completion.append(update.tokens, reason)
            if matched is not None:
                reason, stop_reason = "stop", matched
                self._scheduler.finish(update.seq_id, reason, stop_reason)
        except Exception as fault:
            reason, error = "error", f"{type(fault).__name__}: {fault}"
            self._scheduler.fail(update.seq_id, error)
        num_new = len(completion.token_ids) - num_before  # a stop string may have cut a run of several
        state.note_tokens(update.index, num_new, now_s)
        self._stat_logger.num_output_tokens += num_new
        if reason is None:
            return False
        if self.speculator is not None:
            self.speculator.forget(update.seq_id)
        completion.end(reason, stop_reason, error)
        self._stat_logger.note_end(reason)
        if state.is_finished:
            state.finished_s = now_s
            del self._requests[update.request_id]
        return True

    # -- what can be seen from outside

    @property
    def trace(self) -> tuple[StepTrace, ...]:
        """What each step did, oldest first; the newest `max_trace_steps` of them."""
        return tuple(self._stat_logger.steps)

    @property
    def latest_step(self) -> StepTrace | None:
        """The newest entry of `trace`; None before the first, or if none is kept."""
        steps = self._stat_logger.steps
        return steps[-1] if steps else None

    def stats(self) -> EngineStats:
        return self._stat_logger.stats(self._scheduler)

    def block_tables(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """Block ids and computed tokens of each running sequence, by request id ('id.index' where a prompt forked).

        -1 stands for a block that left the sliding window and was freed.
        """
        forked = {sequence.request.request_id for sequence in self._scheduler.sequences.values() if sequence.index}
        tables = {}
        for sequence in self._scheduler.sequences.values():
            if sequence.table is not None:
                name = sequence.request.request_id
                name = f"{name}.{sequence.index}" if name in forked else name
                tables[name] = (tuple(sequence.table.block_ids), sequence.num_computed_tokens)
        return tables

    def _describe(self, plan: StepPlan, now_s: float) -> tuple[tuple[TraceChunk, ...], tuple[tuple[str, int], ...]]:
        """The plan's chunks and preemptions as the trace shows them; notes first admissions on the way."""
        sequences = self._scheduler.sequences
        chunks = []
        for chunk in plan.chunks:
            sequence = sequences[chunk.seq_id]
            request_id = sequence.request.request_id
            chunks.append((request_id, sequence.index, chunk.start, len(chunk.token_ids)))
            state = self._requests[request_id]
            if state.first_scheduled_s is None:
                state.first_scheduled_s, state.num_cached_tokens = now_s, sequence.num_cached_tokens
        preempted = []
        for victim in (sequences[seq_id] for seq_id in plan.preempted if seq_id in sequences):
            self._requests[victim.request.request_id].num_preemptions += 1
            preempted.append((victim.request.request_id, victim.index))
        return tuple(chunks), tuple(preempted)
