"""One step being planned: the moves a policy has, and the rules they keep."""

import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import final

from twophase.core.errors import BlockCopyError, PolicyError
from twophase.core.plan import ScheduledChunk, StepPlan
from twophase.scheduling._queues import SequenceQueues
from twophase.scheduling.ledger import BlockLedger
from twophase.scheduling.policy import Refusal
from twophase.scheduling.sequence import Sequence


@final
class StepBuilder:
    """The `Step` of policy.py. Whatever a policy does with it, the state it leaves is legal: it keeps the token budget,
    and takes blocks and places from the ledger, whose rules are told there.

    When a decode finds no block, the running sequence of worst rank that is not planned yet loses its blocks, by
    `preempt`.
    """

    def __init__(
        self,
        ledger: BlockLedger,
        queues: SequenceQueues,
        preempt: Callable[[Sequence], None],
        now_s: int | float = 0.0,
        num_stalled_steps: int = 0,
    ) -> None:
        self.now_s = now_s
        self.num_stalled_steps = num_stalled_steps
        self.wake_s: int | float | None = None
        self._ledger = ledger
        self._queues = queues
        self._lose_blocks = preempt
        self._max_tokens = ledger.config.max_num_batched_tokens
        self._num_tokens = 0  # planned
        self._decodes: list[ScheduledChunk] = []
        self._prefills: list[ScheduledChunk] = []
        self._planned: set[int] = set()
        self._preempted: set[int] = set()
        self._refusals: dict[int, Refusal] = {}
        self._failed: dict[int, Exception] = {}

    # -- what a policy sees

    @property
    def budget(self) -> int:
        return max(0, self._max_tokens - self._num_tokens)

    @property
    def num_free_places(self) -> int:
        return self._ledger.num_free_places

    @property
    def num_waiting(self) -> int:
        return len(self._queues.waiting)

    @property
    def is_empty(self) -> bool:
        return not self._planned

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._queues.running)

    @property
    def waiting(self) -> Iterator[Sequence]:
        position = 0
        while position < len(self._queues.waiting):
            sequence = self._queues.waiting[position]
            yield sequence
            position = self._queues.waiting.bisect_key_right(sequence.rank)

    def refusal_of(self, sequence: Sequence) -> Refusal:
        return self._refusals.get(sequence.seq_id, Refusal.POLICY)

    # -- what a policy can do

    def decode(self, sequence: Sequence) -> bool:
        if not self._has_blocks(sequence) or not self.budget or sequence.seq_id in self._failed:
            return False
        if not sequence.is_decoding:
            raise PolicyError(
                f"a policy planned a decode of sequence {sequence.seq_id}, which is still in its prefill."
            )
        while not self._grow_for_decode(sequence):
            if sequence.seq_id in self._failed:
                return False
            victim = self._worst_unplanned()
            self._preempt(victim)
            if victim is sequence:
                return False
        start, block_ids = sequence.num_computed_tokens, sequence.open_table.block_ids
        self._decodes.append(ScheduledChunk(sequence.seq_id, sequence.token_ids[start:], start, block_ids, 1))
        self._planned.add(sequence.seq_id)
        self._num_tokens += 1
        return True

    def prefill(self, sequence: Sequence, max_tokens: int | None = None) -> int:
        if not self._has_blocks(sequence):
            return 0
        if sequence.is_decoding:
            raise PolicyError(f"a policy planned a prefill of sequence {sequence.seq_id}, which decodes already.")
        return self._plan_chunk(sequence, max_tokens)

    def admit(self, sequence: Sequence, max_tokens: int | None = None, *, whole: bool = False) -> int:
        self._require_unplanned(sequence)
        if sequence.table is not None:
            raise PolicyError(f"a policy let in sequence {sequence.seq_id}, which is running already.")
        may_split = self._may_split(sequence, whole)
        refusal = self._admit(sequence, max_tokens, may_split)
        if refusal is not None:
            self._refusals[sequence.seq_id] = refusal
            return 0
        self._queues.start(sequence)
        return self._plan_chunk(sequence, max_tokens if may_split else None)

    def limit(self, max_tokens: int) -> None:
        self._max_tokens = min(self._max_tokens, max_tokens)

    def wait_until(self, when_s: int | float) -> None:
        if not self.now_s < when_s < math.inf:
            raise PolicyError(f"a policy can wait for a later time; it is {self.now_s} s, and it asked for {when_s}.")
        self.wake_s = when_s

    # -- the rules

    def _may_split(self, sequence: Sequence, whole: bool) -> bool:
        """In chunks, as configured; so is one that outgrew the budget or, with a window, the pool: it could never go
        on."""
        is_too_long = len(sequence.token_ids) > min(self._max_tokens, self._ledger.num_slots)
        return is_too_long or (self._ledger.config.enable_chunked_prefill and not whole)

    def _admit(self, sequence: Sequence, max_tokens: int | None, may_split: bool) -> Refusal | None:
        if max_tokens is not None and max_tokens < 1:
            return Refusal.POLICY
        if not self.budget:
            return Refusal.BUDGET
        return self._ledger.admit(sequence, None if may_split else self.budget)

    def _has_blocks(self, sequence: Sequence) -> bool:
        """Whether a sequence that is not planned yet runs; False if it lost its blocks in this step."""
        self._require_unplanned(sequence)
        if sequence.table is None and sequence.seq_id not in self._preempted:
            raise PolicyError(f"a policy planned sequence {sequence.seq_id}, which is not running: let it in first.")
        return sequence.table is not None

    def _grow_for_decode(self, sequence: Sequence) -> bool:
        try:
            return self._ledger.grow_for_decode(sequence)
        except BlockCopyError as error:  # its last block holds nothing that can be relied on
            self._failed[sequence.seq_id] = error
            return False

    def _require_unplanned(self, sequence: Sequence) -> None:
        if sequence.seq_id in self._planned:
            raise PolicyError(f"a policy planned sequence {sequence.seq_id} twice in one step; once is the most.")

    def _worst_unplanned(self) -> Sequence:
        return next(sequence for sequence in reversed(self._queues.running) if sequence.seq_id not in self._planned)

    def _preempt(self, victim: Sequence) -> None:
        self._lose_blocks(victim)
        self._preempted.add(victim.seq_id)
        self._refusals[victim.seq_id] = Refusal.BLOCKS

    def _plan_chunk(self, sequence: Sequence, max_tokens: int | None) -> int:
        """The next chunk of a prefill; returns its tokens."""
        num_tokens = min(sequence.num_uncomputed_tokens, self.budget)
        if max_tokens is not None:
            num_tokens = max(0, min(num_tokens, max_tokens))
        num_tokens = self._ledger.grow_for_chunk(sequence, num_tokens)
        if num_tokens:
            start, block_ids = sequence.num_computed_tokens, sequence.open_table.block_ids
            token_ids = sequence.token_ids[start : start + num_tokens]
            is_last = num_tokens == sequence.num_uncomputed_tokens
            num_samples = sequence.num_completions if is_last else 0
            self._prefills.append(ScheduledChunk(sequence.seq_id, token_ids, start, block_ids, num_samples))
            self._planned.add(sequence.seq_id)
            self._num_tokens += num_tokens
        return num_tokens

    # -- the outcome

    def plan(self, preempted: tuple[int, ...]) -> StepPlan:
        return StepPlan(
            chunks=(*self._decodes, *self._prefills),
            num_decodes=len(self._decodes),
            num_tokens=self._num_tokens,
            copies=tuple(self._ledger.copies),
            preempted=preempted,
            loaded=tuple(self._ledger.loaded),
            num_offloaded=self._ledger.num_offloaded,
            failed=dict(self._failed),
            wake_s=None if self._planned else self.wake_s,
        )

    def reserve_drafts(self, plan: StepPlan, sequences: Mapping[int, Sequence], max_drafts: int) -> StepPlan:
        """The plan with slots for up to `max_drafts` drafts behind each decode, told by `num_drafts` of its chunk.

        Speculative decoding guesses a sequence's next tokens cheaply and verifies all guesses in one step of the model
        (Leviathan, Kalman, Matias, arXiv:2211.17192; Chen et al., arXiv:2302.01318). Drafts get what the policy has
        left over: budget that no decode, prefill or newcomer wanted, and blocks that are free and not reserved. So
        they cost no sequence its turn, whatever the policy.
        """
        decodes, budget = [], self.budget
        for chunk in plan.chunks[: plan.num_decodes]:
            sequence = sequences[chunk.seq_id]
            num_drafts = self._ledger.grow_for_drafts(sequence, min(max_drafts, budget))
            budget -= num_drafts
            decodes.append(chunk._replace(num_drafts=num_drafts))
        return replace(plan, chunks=(*decodes, *plan.chunks[plan.num_decodes :]))

    @property
    def lets_decodes_stand(self) -> bool:
        """Whether sequences are ready to decode, and none does."""
        return not self._decodes and any(s.is_decoding and s.seq_id not in self._planned for s in self._queues.running)


def put_drafts(plan: StepPlan, drafts: Mapping[int, Seq[int]]) -> StepPlan:
    """The plan with these drafts, by seq_id, in the room reserved for them. A decode without drafts stays a decode.

    Raises:
        ValueError: More drafts than there is room for, or drafts of a chunk that has no room for any.
    """
    decodes: list[ScheduledChunk] = []
    verifying: list[ScheduledChunk] = []
    rooms = {chunk.seq_id: chunk.num_drafts for chunk in plan.chunks}
    for seq_id, tokens in drafts.items():
        if len(tokens) > rooms.get(seq_id, 0):
            raise ValueError(f"sequence {seq_id} has room for {rooms.get(seq_id, 0)} drafts, got {len(tokens)}.")
    for chunk in plan.chunks[: plan.num_decodes]:
        tokens = drafts.get(chunk.seq_id, ())
        token_ids = [*chunk.token_ids, *tokens]
        (verifying if tokens else decodes).append(chunk._replace(token_ids=token_ids, num_drafts=len(tokens)))
    return replace(
        plan,
        chunks=(*decodes, *verifying, *plan.chunks[plan.num_decodes :]),
        num_decodes=len(decodes),
        num_verifying=len(verifying),
        num_tokens=plan.num_tokens + sum(map(len, drafts.values())),
    )
