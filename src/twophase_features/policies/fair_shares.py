"""Fair shares: the next request is admitted from the tenant that was served least (VTC, arXiv:2401.00588)."""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import final

from twophase.core.rules import option, optional, whole_number
from twophase.scheduling.policy import Policy, Step, decodes_and_begun
from twophase.scheduling.sequence import Sequence

OUTPUT_WEIGHT = 2  # of a generated token, where a prompt's counts 1: the weights of the paper's experiments


@final
@dataclass(frozen=True, slots=True)
class FairPolicy(Policy):
    """Decodes first, then the prompts begun; then requests are admitted from the tenant that was served least. So a
    tenant with many requests does not take another tenant's share, and an unused share goes to the other tenants. Among
    one tenant's requests priority and arrival decide.

    As long as two tenants wait, their counters stay within a bound of each other that depends on the largest prompt and
    on the tokens that fit into the batch, however long that goes on (the paper proves it).

    **The lift.** A tenant who was idle would come back with a counter far below the others' and have the engine alone
    until it had caught up: idleness would be saved up. So a tenant that begins to wait is lifted to the smallest
    counter of the tenants that wait or, if no other waits, to that of the tenant that waited last. A counter never
    falls.

    Attributes:
        max_tokens: Tokens per step, as in `ChunkedPrefillPolicy`; None: the scheduler's budget.
        counters: The virtual token counter of each tenant of one scheduler: its prompt tokens that were not cached,
            counted when the request is admitted, plus `OUTPUT_WEIGHT` for each token generated.
        waiting: The seq_ids that wait, of the tenants that have any.
        waited_last: The last tenant that stopped waiting, alone in a list.
    """

    max_tokens: int | None = option(None, optional(whole_number(1)))
    counters: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)
    waiting: dict[str, set[int]] = field(default_factory=dict, init=False, repr=False, compare=False)
    waited_last: list[str] = field(default_factory=lambda: [""], init=False, repr=False, compare=False)

    def fresh(self) -> Policy:
        return replace(self)

    def note_waiting(self, sequence: Sequence) -> None:
        tenant, counters = sequence.request.tenant, self.counters
        if sequence.num_preemptions == 0:  # (if its tenant waits already, the least is no more than its own counter)
            least = min((counters[other] for other in self.waiting), default=counters[self.waited_last[0]])
            counters[tenant] = max(counters[tenant], least)
        self.waiting.setdefault(tenant, set()).add(sequence.seq_id)

    def note_computed(self, sequence: Sequence, num_prefill_tokens: int, num_output_tokens: int) -> None:
        self.counters[sequence.request.tenant] += OUTPUT_WEIGHT * num_output_tokens

    def note_ended(self, sequence: Sequence) -> None:
        self._end_waiting(sequence)

    def _end_waiting(self, sequence: Sequence) -> None:
        """A sequence was admitted, or ended; ignored if it did not wait."""
        tenant = sequence.request.tenant
        if sequence.seq_id in self.waiting.get(tenant, ()):
            self.waiting[tenant].remove(sequence.seq_id)
            if not self.waiting[tenant]:
                del self.waiting[tenant]
                self.waited_last[0] = tenant

    def plan(self, step: Step) -> None:
        decodes_and_begun(step, self.max_tokens)
        if not (step.budget and step.num_free_seqs):
            return
        of_tenant: dict[str, deque[Sequence]] = defaultdict(deque)
        for sequence in step.waiting:
            of_tenant[sequence.request.tenant].append(sequence)
        while of_tenant:
            tenant = min(of_tenant, key=lambda tenant: (self.counters[tenant], of_tenant[tenant][0].rank))
            sequence = of_tenant[tenant].popleft()
            if not step.admit(sequence):
                return
            self._end_waiting(sequence)
            if sequence.num_preemptions == 0:  # a preempted sequence's prompt is charged already
                self.counters[tenant] += sequence.num_prompt_tokens - sequence.num_cached_tokens
            if not of_tenant[tenant]:
                del of_tenant[tenant]
