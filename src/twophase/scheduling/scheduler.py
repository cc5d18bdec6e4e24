"""Continuous batching: which sequences compute which tokens in the next step.

A step is planned by `schedule`, run by the engine, and confirmed by `update`. Nothing that `schedule` does counts as
computed until `update` says so, hence the rule for failures: **whenever `schedule` raised, or a planned step was not
run to its end, drop the plan and call `schedule` again.** What `schedule` leaves
behind is legal by itself: sequences admitted or preempted, and blocks with room for tokens not yet computed. One thing
the next `schedule` undoes: room for drafts.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Protocol, final, runtime_checkable

from twophase.cache.allocator import KVAllocator
from twophase.core.errors import InvalidRequestError, PolicyError
from twophase.core.outputs import FinishReason
from twophase.core.plan import BlockCopy, SampledToken, ScheduledChunk, SequenceUpdate, StepPlan
from twophase.core.request import Request
from twophase.scheduling._queues import SequenceQueues
from twophase.scheduling.ledger import BlockLedger
from twophase.scheduling.limits import SchedulerConfig, check_request, max_new_tokens
from twophase.scheduling.policy import Policy, PriorityPolicy, Refusal, usable_rank
from twophase.scheduling.sequence import Sequence, SequenceStatus
from twophase.scheduling.step import StepBuilder, put_drafts


@runtime_checkable
class BlockCopier(Protocol):
    """What can copy whole blocks of a K/V cache."""

    def copy_blocks(self, copies: Seq[BlockCopy]) -> None: ...


@final
class Scheduler:
    """Decides what runs; owns every Sequence. Not thread-safe: one engine calls it, between steps.

    What goes into a step is the policy's decision (policy.py); step.py keeps the token budget and preempts, and
    ledger.py has the blocks and places.
    By default each step has one token of every decoding sequence, then the prefills already begun, then new ones, as
    the token budget, the places and the blocks allow. So a decode never waits for a prefill, and as the budget is at
    least the number of places, a prefill always gets a token.

    Attributes:
        sequences: The unfinished ones, by seq_id; read-only to others.
        policy: `Policy.fresh` of the policy that was given or assigned. Sequences that wait keep the rank that an
            earlier policy gave them.
        ledger: Of blocks and places; read-only to others.
        refusal: Why the first of the waiting sequences was not let in by the latest plan; None if none waited.
    """

    def __init__(self, config: SchedulerConfig, cache: KVAllocator, policy: Policy | None = None) -> None:
        self.cache = cache
        self.ledger = BlockLedger(config, cache)
        self.policy = policy or PriorityPolicy()
        self.refusal: Refusal | None = None
        self.sequences: dict[int, Sequence] = {}
        self._seq_ids_of: dict[str, list[int]] = {}  # request id -> its unfinished sequences
        self._queues = SequenceQueues()
        self._next_seq_id = 0
        self._plan: StepPlan | None = None  # handed out, not confirmed
        self._step: StepBuilder | None = None  # what it was made with
        self._num_stalled_steps = 0
        self._ended: list[Sequence] = []  # the policy has not been told of their end yet

    @property
    def policy(self) -> Policy:
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy.fresh()

    @property
    def config(self) -> SchedulerConfig:
        return self.ledger.config

    def connect(self, runner: BlockCopier) -> None:
        """Tell what moves whole blocks of the K/V cache, at once: the engine's runner."""
        self.ledger.copy_blocks = runner.copy_blocks
        if self.cache.tier is not None:
            self.cache.tier.attach(runner)

    @property
    def has_unfinished(self) -> bool:
        return bool(self.sequences)

    @property
    def num_waiting(self) -> int:
        """Sequences without blocks, preempted ones included."""
        return len(self._queues.waiting)

    @property
    def num_running(self) -> int:
        return len(self._queues.running)

    def add(self, request: Request) -> int:
        """Queue a request; returns the seq_id of its completion 0 (the others get theirs when the prompt is done).

        Raises:
            InvalidRequestError: As `check`; nothing has changed.
        """
        sequence = self._sequence_of(request)
        self.policy.note_waiting(sequence)
        self._next_seq_id += 1
        self._queues.add(sequence)
        self._register(sequence)
        return sequence.seq_id

    def check(self, request: Request) -> None:
        """Raise InvalidRequestError, and change nothing, if `add` would refuse this request.

        That is: it could never be served as asked (the error has the numbers), an unfinished request has its id, or the
        policy cannot rank it.
        """
        self._sequence_of(request)

    def _sequence_of(self, request: Request) -> Sequence:
        check_request(request, self.config, self.cache)
        if request.request_id in self._seq_ids_of:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use by an unfinished request.")
        sequence = Sequence.of_request(self._next_seq_id, request, self.config.max_model_len)
        sequence.rank = usable_rank(self.policy, sequence)
        return sequence

    def max_new_tokens(self, num_prompt_tokens: int, n: int = 1) -> int:
        """The largest `max_tokens` that a request may ask for, by the context and the pool; at least 1."""
        return max_new_tokens(num_prompt_tokens, n, self.config, self.cache)

    def schedule(self, now_s: int | float = 0.0) -> StepPlan:
        """Plan the next step. A plan not confirmed by `update` is dropped.

        It is empty if nothing is unfinished, or if the policy waits for something: then `plan.wake_s` tells until when.

        Args:
            now_s: The time, on the clock of the requests' `arrival_s`.

        Raises:
            PolicyError: The policy broke a rule, or planned nothing though something is unfinished.
        """
        self._plan = None
        self.ledger.roll_back()
        step = StepBuilder(self.ledger, self._queues, self._preempt, now_s, self._num_stalled_steps)
        self._step = step
        if self.has_unfinished:
            self.policy.plan(step)
        self.refusal = step.refusal_of(self._queues.waiting[0]) if self._queues.waiting else None
        if self.has_unfinished and step.is_empty and step.wake_s is None:
            why = "" if self.refusal is None else f" The first of them stays out for this reason: {self.refusal.value}."
            raise PolicyError(
                f"{self.policy} planned nothing, and waits for nothing, though {self.num_running} sequences are "
                f"running and {self.num_waiting} waiting: it would hang.{why}"
            )
        preempted = tuple(seq_id for seq_id in self._queues.preempted if seq_id in self.sequences)
        self._queues.preempted = []
        self._plan = step.plan(preempted)
        return self._plan

    def reserve_drafts(self, max_drafts: int) -> StepPlan:
        """Give each decode of the latest plan room for up to `max_drafts` drafts; its chunks tell how many."""
        assert self._plan is not None
        assert self._step is not None
        self._plan = self._step.reserve_drafts(self._plan, self.sequences, max_drafts)
        return self._plan

    def put_drafts(self, drafts: Mapping[int, Seq[int]]) -> StepPlan:
        """Put drafts, by seq_id, into the room that the latest plan has for them; returns the plan to be run.

        Raises ValueError, and changes nothing, if there is less room.
        """
        assert self._plan is not None
        self._plan = put_drafts(self._plan, drafts)
        return self._plan

    def update(self, plan: StepPlan, sampled: Mapping[int, Seq[SampledToken]]) -> list[SequenceUpdate]:
        """Confirm that `plan` ran: append tokens, fork, finish, publish full blocks, free.

        `sampled` has `num_samples` tokens for each chunk that samples; for one with drafts, those that were accepted
        and the token drawn after them. Of such a run a sequence takes what comes before its end, to the token.
        Chunks of sequences failed or aborted since the plan was made are skipped.

        Raises ValueError, and changes nothing, if `plan` is not the latest plan or `sampled` does not match it.
        """
        self._check_sampled(plan, sampled)
        unfinished = (chunk for chunk in plan.chunks if chunk.seq_id in self.sequences)
        computed = [(chunk, self._until_end(chunk, sampled.get(chunk.seq_id, ()))) for chunk in unfinished]
        for chunk, tokens in computed:  # first, as a policy may raise
            sequence = self.sequences[chunk.seq_id]
            num_prefill_tokens = 0 if sequence.is_decoding else len(chunk.token_ids)
            self.policy.note_computed(sequence, num_prefill_tokens, len(tokens))
        step, self._plan, self._step = self._step, None, None
        assert step is not None
        self._num_stalled_steps = self._num_stalled_steps + 1 if step.lets_decodes_stand else 0
        self.ledger.commit()
        updates: list[SequenceUpdate] = []
        for chunk, tokens in computed:
            updates += self._settle(chunk, tokens)
        self._tell_ends()
        return updates

    def _settle(self, chunk: ScheduledChunk, tokens: tuple[SampledToken, ...]) -> list[SequenceUpdate]:
        """A chunk's K and V are in its blocks, and these are the tokens drawn after it."""
        sequence = self.sequences[chunk.seq_id]
        if chunk.num_drafts:
            return [self._confirm_run(sequence, chunk, tokens)]
        self.ledger.confirm(sequence, chunk.start + len(chunk.token_ids), chunk.num_samples > 0)
        if not chunk.num_samples:
            return []
        completions = self._fork(sequence) if chunk.num_samples > 1 else (sequence,)
        return [self._append(completion, (token,)) for completion, token in zip(completions, tokens, strict=True)]

    def abort(self, request_id: str, error: str | None = None) -> list[SequenceUpdate]:
        """End every completion of a request, wherever it stands; nothing happens if it is not unfinished.

        With `error` they end by 'error', else by 'abort'.
        """
        seq_ids = list(self._seq_ids_of.get(request_id, ()))
        reason: FinishReason = "abort" if error is None else "error"
        return [update for seq_id in seq_ids for update in self.finish(seq_id, reason, error=error)]

    def fail(self, seq_id: int, error: Exception | str) -> list[SequenceUpdate]:
        """End one sequence with an error."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return self.finish(seq_id, "error", error=text)

    def finish(
        self, seq_id: int, reason: FinishReason, stop_reason: str | int | None = None, *, error: str | None = None
    ) -> list[SequenceUpdate]:
        """End one sequence now and free its blocks; allowed at any time, also between `schedule` and `update`.

        Returns an update for each completion it stood for: n of them if it had not forked yet, none if it is not
        unfinished.
        """
        sequence = self.sequences.get(seq_id)
        if sequence is None:
            return []
        request_id = sequence.request.request_id
        indices = range(sequence.index, sequence.index + sequence.num_completions)
        self._retire(sequence)
        self._note_length(sequence, reason)
        self._tell_ends()
        return [SequenceUpdate(seq_id, request_id, index, (), reason, stop_reason, error) for index in indices]

    # -- bookkeeping after a step

    def _check_sampled(self, plan: StepPlan, sampled: Mapping[int, Seq[SampledToken]]) -> None:
        if plan is not self._plan:
            raise ValueError("update() takes the latest plan, once; this one was dropped or confirmed before.")
        for chunk in plan.chunks:
            num_sampled = len(sampled.get(chunk.seq_id, ()))
            most = chunk.num_samples + chunk.num_drafts
            if not chunk.num_samples <= num_sampled <= most and chunk.seq_id in self.sequences:
                wanted = f"1 to {most}" if chunk.num_drafts else chunk.num_samples
                raise ValueError(
                    f"sequence {chunk.seq_id} was to get {wanted} sampled tokens, got {num_sampled}; "
                    f"fail() it first if its sampling failed."
                )

    def _until_end(self, chunk: ScheduledChunk, tokens: Seq[SampledToken]) -> tuple[SampledToken, ...]:
        """The tokens sampled after a chunk; accepted drafts and the token after them up to the sequence's end."""
        if not chunk.num_drafts:
            return tuple(tokens)
        sequence = self.sequences[chunk.seq_id]
        room = sequence.max_num_tokens - len(sequence.token_ids)
        ends = (i + 1 for i, token in enumerate(tokens[:room]) if token.token_id in sequence.stop_token_ids)
        return tuple(tokens[: next(ends, room)])

    def _confirm_run(self, sequence: Sequence, chunk: ScheduledChunk, run: tuple[SampledToken, ...]) -> SequenceUpdate:
        """Confirm accepted drafts and the token after them."""
        # The newest token and all of the run but its last are computed, that one is computed by the next step.
        sequence.token_ids += [token.token_id for token in run[:-1]]
        self.ledger.confirm(sequence, chunk.start + len(run))
        return self._append(sequence, run)

    def _fork(self, sequence: Sequence) -> tuple[Sequence, ...]:
        """The prompt is done: the completions part, sharing its blocks. All of them or, on an error, none."""
        forks: list[Sequence] = []
        for index in range(1, sequence.num_completions):
            fork = sequence.fork(self._next_seq_id, index)
            fork.rank = usable_rank(self.policy, fork)
            self._next_seq_id += 1
            forks.append(fork)
        self.ledger.fork(sequence, forks)
        for fork in forks:
            self._register(fork)
            self._queues.run(fork)
        return (sequence, *forks)

    def _preempt(self, victim: Sequence) -> None:
        """A running sequence loses its blocks and waits again."""
        self.ledger.take_back(victim)
        self._queues.preempt(victim)
        self.policy.note_waiting(victim)

    def _append(self, sequence: Sequence, run: tuple[SampledToken, ...]) -> SequenceUpdate:
        """Append the last token of a run; the sequence ends on a stop token, or with as many tokens as it may have."""
        reason: FinishReason | None = None
        stop_reason = None
        token = run[-1]
        if token.token_id in sequence.stop_token_ids:
            reason = "stop"
            request = sequence.request
            is_eos = token.token_id in request.eos_token_ids and not request.sampling_params.ignore_eos
            stop_reason = None if is_eos else token.token_id
        elif len(sequence.token_ids) + 1 >= sequence.max_num_tokens:
            reason = "length"
        if reason is not None:
            self._retire(sequence)  # first, as it may raise
        sequence.token_ids.append(token.token_id)
        if reason is not None:
            self._note_length(sequence, reason)
        request_id = sequence.request.request_id
        return SequenceUpdate(sequence.seq_id, request_id, sequence.index, run, reason, stop_reason)

    def _note_length(self, sequence: Sequence, reason: FinishReason) -> None:
        """What admission can learn from a completion that ended by itself."""
        if reason in ("stop", "length"):
            num_prompt = sequence.num_prompt_tokens
            self.ledger.output_lengths.note(len(sequence.token_ids) - num_prompt, sequence.max_num_tokens - num_prompt)

    # -- state

    def _register(self, sequence: Sequence) -> None:
        self.sequences[sequence.seq_id] = sequence
        self._seq_ids_of.setdefault(sequence.request.request_id, []).append(sequence.seq_id)

    def _retire(self, sequence: Sequence) -> None:
        """Out of the scheduler: blocks freed, nothing remembered."""
        self.ledger.take_back(sequence)
        self._queues.remove(sequence)
        sequence.become(SequenceStatus.FINISHED)
        del self.sequences[sequence.seq_id]
        request_id = sequence.request.request_id
        self._seq_ids_of[request_id].remove(sequence.seq_id)
        if not self._seq_ids_of[request_id]:
            del self._seq_ids_of[request_id]
        self._ended.append(sequence)

    def _tell_ends(self) -> None:
        """Tell the policy which sequences have ended. Called last, as a policy may raise."""
        while self._ended:
            self.policy.note_ended(self._ended.pop(0))
