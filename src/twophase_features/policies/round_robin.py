"""Round-robin over the chunks of prefills."""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, replace
from itertools import count, islice
from typing import final

from twophase.core.rules import option, optional, whole_number
from twophase.scheduling.policy import Policy, Step
from twophase.scheduling.sequence import Sequence


@final
@dataclass(frozen=True, slots=True)
class RotatingPolicy(Policy):
    """Decodes first, then prompts round-robin: each gets a chunk and goes to the end of the queue, new prompts too.

    In order of arrival a short prompt waits for all of a long prompt before it: chunks keep decodes from waiting, but
    do not help the next prompt. In round-robin it waits for one chunk of each prompt. The price: prompts that begin
    together also end together, each later than necessary.

    Without chunked prefill a turn is a whole prompt.

    Attributes:
        chunk_tokens: Tokens of a prompt's turn. The last turns of a step share the rest of its budget.
        max_tokens: Tokens of a step, as in `ChunkedPrefillPolicy`; None: the scheduler's budget.
        turns: The number of each sequence's latest turn, by seq_id: the smallest number has waited longest. Turns are
            counted over all sequences of one scheduler.
    """

    chunk_tokens: int = option(MISSING, whole_number(1))
    max_tokens: int | None = option(None, optional(whole_number(1)))
    turns: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    clock: Iterator[int] = field(default_factory=lambda: count(1), init=False, repr=False, compare=False)

    def fresh(self) -> Policy:
        return replace(self)

    def note_waiting(self, sequence: Sequence) -> None:
        if sequence.num_preemptions == 0:  # a preempted sequence keeps its turn
            self.turns[sequence.seq_id] = next(self.clock)

    def note_computed(self, sequence: Sequence, num_prefill_tokens: int, num_output_tokens: int) -> None:
        if num_prefill_tokens:
            self.turns[sequence.seq_id] = next(self.clock)

    def note_ended(self, sequence: Sequence) -> None:
        self.turns.pop(sequence.seq_id, None)

    def plan(self, step: Step) -> None:
        for sequence in step.running:
            if sequence.is_decoding:
                step.decode(sequence)
        begun = [sequence for sequence in step.running if not sequence.is_decoding]  # and not preempted for a decode
        if self.max_tokens is not None:
            step.limit(self.max_tokens)
        # As many waiting sequences as may get a turn. The turns come by age, and are taken by rank.
        waiting = list(islice(step.waiting, 1 + step.budget // self.chunk_tokens))
        candidates = [(sequence, sequence.table is not None) for sequence in (*begun, *waiting)]
        by_rank = iter(waiting)
        is_closed = False
        for sequence, is_begun in sorted(candidates, key=lambda candidate: self.turns.get(candidate[0].seq_id, 0)):
            if is_begun:
                step.prefill(sequence, self.chunk_tokens)
            elif not is_closed:
                is_closed = not step.admit(next(by_rank), self.chunk_tokens)
