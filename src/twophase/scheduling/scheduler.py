"""Continuous batching: which sequences compute which tokens in the next step.

A step is planned by `schedule`, run by the engine, and confirmed by `update`. A planned token counts as computed only
after `update`, hence the rule for failures: **if `schedule` raised, or a planned step was not run to its end, drop the
plan and call `schedule` again.** A dropped plan leaves a valid state: sequences admitted or preempted, and blocks with
room for tokens not yet computed.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any, final

from twophase.cache.allocator import KVAllocator
from twophase.core.errors import InvalidRequestError
from twophase.core.plan import Sampled, SampledToken, ScheduledChunk, SequenceUpdate, StepPlan
from twophase.core.request import FinishReason, Request
from twophase.scheduling.limits import SchedulerConfig, check_request
from twophase.scheduling.planner import Planner
from twophase.scheduling.policy import Policy, PriorityPolicy
from twophase.scheduling.sequence import Sequence, SequenceStatus


@final
class Scheduler:
    """Plans and confirms steps; owns every Sequence. Not thread-safe.

    The policy chooses the chunks of a step (policy.py); the planner enforces the limits (planner.py).

    Attributes:
        sequences: Unfinished sequences by seq_id; read-only to others.
        planner: The waiting and the running queue; read-only to others.
    """

    def __init__(self, config: SchedulerConfig, cache: KVAllocator, policy: Policy | None = None) -> None:
        self.config = config
        self.cache = cache
        self.planner = Planner(config, cache, (policy or PriorityPolicy()).fresh())
        self.sequences: dict[int, Sequence] = {}
        self._seq_ids_of: dict[str, list[int]] = {}  # request id -> its unfinished sequences
        self._next_seq_id = 0
        self._plan: StepPlan | None = None  # the latest, until `update`
        self._ended: list[Sequence] = []  # not reported to the policy yet

    @property
    def policy(self) -> Policy:
        """Made by `Policy.fresh` for this scheduler. After a change, sequences keep the rank of the old policy."""
        return self.planner.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self.planner.policy = policy.fresh()

    def connect(self, runner: Any) -> None:
        """Connect the planner's block copies, and the KV tier if there is one, to the engine's `Runner`."""
        self.planner.copy_blocks = runner.copy_blocks
        if self.cache.tier is not None:
            self.cache.tier.attach(runner)

    @property
    def has_unfinished(self) -> bool:
        return bool(self.sequences)

    @property
    def num_waiting(self) -> int:
        """Sequences without blocks, preempted ones included."""
        return self.planner.num_waiting

    @property
    def num_running(self) -> int:
        return len(self.planner.running)

    # -- requests

    def add(self, request: Request) -> int:
        """Queue a request; returns the seq_id of completion 0; the others fork later. Raises as `check`."""
        sequence = self._sequence_of(request)
        self.policy.note_waiting(sequence)
        self._next_seq_id += 1
        self.planner.add(sequence)
        self._register(sequence)
        return sequence.seq_id

    def check(self, request: Request) -> None:
        """Raise InvalidRequestError if the request could never be served, or an unfinished request has its id."""
        self._sequence_of(request)

    def _sequence_of(self, request: Request) -> Sequence:
        check_request(request, self.config, self.cache)
        if request.request_id in self._seq_ids_of:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use by an unfinished request.")
        sequence = Sequence.of_request(self._next_seq_id, request, self.config.max_model_len)
        sequence.rank = self.policy.rank(sequence)
        return sequence

    def _register(self, sequence: Sequence) -> None:
        self.sequences[sequence.seq_id] = sequence
        self._seq_ids_of.setdefault(sequence.request.request_id, []).append(sequence.seq_id)

    # -- one step

    def schedule(self, now_s: int | float = 0.0) -> StepPlan:
        """Plan the next step; `now_s` is the time on the clock of the requests' `arrival_s`. The plan is empty if no
        request is left, or if the policy waits until `plan.wake_s`. Raises PolicyError if the policy broke a rule, or
        planned nothing though a request is unfinished."""
        self._plan = None
        self._plan = self.planner.plan(now_s)
        return self._plan

    def amend(self, plan: StepPlan) -> None:
        """Replace the latest plan by `plan`, the same plan with drafts."""
        self._plan = plan

    def update(self, plan: StepPlan, sampled: Mapping[int, Seq[SampledToken]]) -> list[SequenceUpdate]:
        """Confirm that `plan` ran: append tokens, fork, finish, publish full blocks, free. Chunks of ended sequences
        are skipped. Raises ValueError, and changes nothing, if `plan` is not the latest plan or `sampled` does not
        match.

        `sampled` has `num_samples` tokens for each chunk that samples; for a chunk with drafts, the accepted drafts and
        the token drawn after them, which are cut after a stop token and at the length limit.
        """
        if plan is not self._plan:
            raise ValueError("update() takes the latest plan, once; this one was dropped or confirmed before.")
        chunks = [(self.sequences[chunk.seq_id], chunk) for chunk in plan.chunks if chunk.seq_id in self.sequences]
        computed = [(sequence, chunk, _tokens_of(sequence, chunk, sampled)) for sequence, chunk in chunks]
        for sequence, chunk, tokens in computed:  # before any change: a policy may raise
            self.policy.note_computed(sequence, 0 if sequence.is_decoding else len(chunk.token_ids), len(tokens))
        self._plan = None
        self.planner.commit()
        updates = [update for each in computed for update in self._settle(*each)]
        self._tell_ends()
        return updates

    def _settle(self, sequence: Sequence, chunk: ScheduledChunk, tokens: Sampled) -> list[SequenceUpdate]:
        """Confirm one chunk: append accepted drafts and sampled tokens; fork n completions after their prompt."""
        num_accepted = len(tokens) - 1 if chunk.num_drafts else 0
        sequence.token_ids += [token.token_id for token in tokens[:num_accepted]]
        self.planner.confirm(sequence, chunk.start + len(chunk.token_ids) - chunk.num_drafts + num_accepted)
        if chunk.num_samples == 1:
            return [self._append(sequence, tokens)]
        completions = (sequence, *self._fork(sequence)) if chunk.num_samples else ()
        return [self._append(completion, (token,)) for completion, token in zip(completions, tokens, strict=True)]

    def _fork(self, sequence: Sequence) -> list[Sequence]:
        """Fork completions 1 .. n-1 of a computed prompt, whose blocks they share. On an error, no fork is made."""
        forks = []
        for index in range(1, sequence.num_completions):
            fork = sequence.fork(self._next_seq_id, index)
            fork.rank = self.policy.rank(fork)
            self._next_seq_id += 1
            forks.append(fork)
        self.planner.fork(sequence, forks)
        for fork in forks:
            self._register(fork)
        return forks

    def _append(self, sequence: Sequence, run: Sampled) -> SequenceUpdate:
        """Append the last token of a run, after its accepted drafts; end on a stop token or at the length limit."""
        token_id, request = run[-1].token_id, sequence.request
        sequence.token_ids.append(token_id)
        reason: FinishReason | None = None
        stop_reason = None
        if token_id in sequence.stop_token_ids:
            is_eos = token_id in request.eos_token_ids and not request.sampling_params.ignore_eos
            reason, stop_reason = "stop", None if is_eos else token_id
        elif len(sequence.token_ids) >= sequence.max_num_tokens:
            reason = "length"
        if reason is not None:
            self._end(sequence, reason)
        return SequenceUpdate(sequence.seq_id, request.request_id, sequence.index, run, reason, stop_reason)

    # -- the end

    def abort(self, request_id: str) -> list[SequenceUpdate]:
        """End all completions of a request, waiting or running; no effect if it is unknown or finished."""
        seq_ids = list(self._seq_ids_of.get(request_id, ()))
        return [update for seq_id in seq_ids for update in self.finish(seq_id, "abort")]

    def fail(self, seq_id: int, error: Exception) -> list[SequenceUpdate]:
        """End one sequence with an error."""
        return self.finish(seq_id, "error", error=f"{type(error).__name__}: {error}")

    def finish(
        self, seq_id: int, reason: FinishReason, stop_reason: str | int | None = None, *, error: str | None = None
    ) -> list[SequenceUpdate]:
        """End one sequence now and free its blocks; allowed at any time, also between `schedule` and `update`. Returns
        an update for each of its completions (n before the fork), and no update if it is unknown or finished."""
        sequence = self.sequences.get(seq_id)
        if sequence is None:
            return []
        self._end(sequence, reason)
        self._tell_ends()
        request_id = sequence.request.request_id
        indices = range(sequence.index, sequence.index + sequence.num_completions)
        return [SequenceUpdate(seq_id, request_id, index, (), reason, stop_reason, error) for index in indices]

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Free a sequence's blocks and forget it; the length of a completion that ended by itself is noted."""
        self.planner.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        del self.sequences[sequence.seq_id]
        request_id = sequence.request.request_id
        self._seq_ids_of[request_id].remove(sequence.seq_id)
        if not self._seq_ids_of[request_id]:
            del self._seq_ids_of[request_id]
        if reason in ("stop", "length"):
            self.planner.admission.note_end(sequence)
        self._ended.append(sequence)

    def _tell_ends(self) -> None:
        """Tell the policy which sequences have ended. Called last, as a policy may raise."""
        while self._ended:
            self.policy.note_ended(self._ended.pop(0))


def _tokens_of(sequence: Sequence, chunk: ScheduledChunk, sampled: Mapping[int, Seq[SampledToken]]) -> Sampled:
    """The tokens sampled for a chunk; with drafts, cut after a stop token and at the length limit. Raises ValueError
    for more or fewer tokens than the chunk asks for."""
    tokens, most = tuple(sampled.get(chunk.seq_id, ())), chunk.num_samples + chunk.num_drafts
    if not chunk.num_samples <= len(tokens) <= most:
        wanted = f"1 to {most}" if chunk.num_drafts else most
        raise ValueError(
            f"sequence {chunk.seq_id} was to get {wanted} sampled tokens, got {len(tokens)}; fail() it first if its "
            f"sampling failed."
        )
    if not chunk.num_drafts:
        return tokens
    room = sequence.max_num_tokens - len(sequence.token_ids)
    ends = (i + 1 for i, token in enumerate(tokens[:room]) if token.token_id in sequence.stop_token_ids)
    return tokens[: next(ends, room)]
