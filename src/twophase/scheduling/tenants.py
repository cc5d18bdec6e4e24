"""What tenants were served, counted so that it can be shared out: virtual token counters (VTC, arXiv:2401.00588)."""

from collections import defaultdict
from typing import final

from twophase.scheduling.sequence import Sequence

OUTPUT_WEIGHT = 2  # of a generated token, where a prompt's counts 1: the weights of the paper's experiments


@final
class TenantCounters:
    """A counter for each tenant: prompt tokens computed for it, plus `OUTPUT_WEIGHT` for each token generated.

    What is served next is the work of the tenant with the smallest counter among those who wait. As long as two tenants
    wait, their counters stay within a bound of each other that depends on the largest prompt and on the tokens that fit
    into the batch, however long that goes on (the paper proves it).

    **The lift.** A tenant who was idle would come back with a counter far below the others' and have the engine alone
    until it had caught up: idleness would be saved up. So whoever begins to wait is lifted, to the smallest counter of
    those who wait, or, if none does, to that of the tenant who waited last. A counter never falls.
    """

    def __init__(self) -> None:
        self._counters: dict[str, int] = defaultdict(int)
        self._num_waiting: dict[str, int] = {}  # sequences, of tenants with any
        self._last = ""  # to stop waiting

    def __getitem__(self, tenant: str) -> int:
        """0 for one who never came."""
        return self._counters.get(tenant, 0)

    def begin_waiting(self, sequence: Sequence) -> None:
        """A sequence joined the queue; one that was preempted is no newcomer, and lifts nobody."""
        tenant = sequence.request.tenant
        if sequence.num_preemptions == 0:  # (of one who waits already, the least is no more than its own)
            least = min((self[other] for other in self._num_waiting), default=self[self._last])
            self._counters[tenant] = max(self[tenant], least)
        self._num_waiting[tenant] = self._num_waiting.get(tenant, 0) + 1

    def end_waiting(self, sequence: Sequence) -> None:
        """It was let in, or ended."""
        tenant = sequence.request.tenant
        self._num_waiting[tenant] -= 1
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant]
            self._last = tenant

    def charge_prompt(self, sequence: Sequence) -> None:
        """Its prompt is computed, but for what was found in the cache. What a preemption costs is nobody's fault."""
        if sequence.num_preemptions == 0:
            self._counters[sequence.request.tenant] += sequence.num_prompt_tokens - sequence.num_cached_tokens

    def charge_output(self, sequence: Sequence, num_tokens: int) -> None:
        """So many tokens were generated."""
        self._counters[sequence.request.tenant] += OUTPUT_WEIGHT * num_tokens
