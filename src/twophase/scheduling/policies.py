"""The scheduling policies. Each is an order and a composition of the step; blocks and budgets are the scheduler's."""

import math
from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

from twophase.core.errors import ConfigError
from twophase.scheduling.policy import Policy, Step
from twophase.scheduling.sequence import Sequence

# -- orders


def by_priority(sequence: Sequence) -> tuple[Any, ...]:
    """By priority, ties by arrival: first come, first served when all priorities are equal.

    A preempted sequence arrived before all of its priority that have not run yet, so it goes to their front.
    """
    request = sequence.request
    return (request.priority, sequence.arrival_order, sequence.index)


# -- compositions


def decodes_first(step: Step, max_tokens: int | None = None) -> None:
    """A token of every decode, then the prefills already begun, then newcomers in order until one does not fit.

    `max_tokens` bounds the tokens of the step, decodes and drafts included; decodes are never held back.
    """
    decodes_and_begun(step, max_tokens)
    for sequence in step.waiting:
        if not step.admit(sequence):
            break


def decodes_and_begun(step: Step, max_tokens: int | None = None) -> None:
    """All of `decodes_first` but the newcomers."""
    prefills = []
    for sequence in step.running:
        if sequence.is_decoding:
            step.decode(sequence)
        else:
            prefills.append(sequence)
    if max_tokens is not None:
        step.limit(max_tokens)
    for sequence in prefills:
        step.prefill(sequence)


def run_batch(step: Step) -> None:
    """The running sequences alone: prefills to their end, then all decodes together."""
    prefills = [sequence for sequence in step.running if not sequence.is_decoding]
    for sequence in prefills:
        step.prefill(sequence)
    if not prefills:
        for sequence in step.running:
            step.decode(sequence)


def start_batch(step: Step, batch_size: int) -> None:
    """Newcomers with up to `batch_size` completions together, one request at least; none joins them later."""
    places = batch_size
    for sequence in step.waiting:
        is_too_many = sequence.num_completions > places and not step.is_empty
        if is_too_many or not step.admit(sequence):
            break
        places -= sequence.num_completions


# -- policies


@final
@dataclass(frozen=True, slots=True)
class PriorityPolicy(Policy):
    """The default: by priority; decodes first, and the rest of the budget for prefills.

    Attributes:
        patience_s: Ageing. None: strict priorities, under which low ones may starve. Otherwise a request passes over
            another of a priority level better once it has waited `patience_s` seconds longer: none is overtaken by
            requests that arrive more than `patience_s` times the difference in level after it. (Comparing
            priority - wait / patience_s of two requests gives the same order at every moment, so the rank is fixed.)
    """

    patience_s: int | float | None = None

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        request = sequence.request
        if self.patience_s is None:
            return by_priority(sequence)
        return (request.arrival_s + request.priority * self.patience_s, sequence.arrival_order, sequence.index)

    def plan(self, step: Step) -> None:
        decodes_first(step)


@final
@dataclass(frozen=True, slots=True)
class ChunkedPrefillPolicy(Policy):
    """Decodes first, and a step that is never longer than `max_tokens` tokens: Sarathi-Serve's stall-free batching
    (arXiv:2403.02310). The time between two tokens of a decode is bounded by the time of such a step.

    Attributes:
        max_tokens: Of a step, decodes and drafts included. Decodes are never held back; prefills take what is left,
            and drafts what they leave.
    """

    max_tokens: int

    def __post_init__(self) -> None:
        _require_positive("max_tokens", self.max_tokens)

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        decodes_first(step, self.max_tokens)


@final
@dataclass(frozen=True, slots=True)
class ContinuousPolicy(Policy):
    """Iteration-level scheduling with whole prompts (Orca, OSDI 2022): sequences join and leave at every step, and a
    prompt is computed in one step beside the decodes, which wait for it."""

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        for sequence in step.running:
            if sequence.is_decoding:
                step.decode(sequence)
        for sequence in step.running:
            if not sequence.is_decoding:
                step.prefill(sequence)
        for sequence in step.waiting:
            if not step.admit(sequence, whole=True):
                break


@final
@dataclass(frozen=True, slots=True)
class PrefillFirstPolicy(Policy):
    """Prompts before decodes, whole and in steps of their own, as early vLLM did: first tokens come soon, and the
    decodes stand still as long as prompts keep coming.

    Attributes:
        max_stalled_steps: Decodes stand still for at most so many steps in a row; None: without bound.
    """

    max_stalled_steps: int | None = None

    def __post_init__(self) -> None:
        if self.max_stalled_steps is not None:
            _require_positive("max_stalled_steps", self.max_stalled_steps)

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        if self.max_stalled_steps is None or step.num_stalled_steps < self.max_stalled_steps:
            for sequence in step.running:
                if not sequence.is_decoding:
                    step.prefill(sequence)
            for sequence in step.waiting:
                if not step.admit(sequence, whole=True):
                    break
        if step.is_empty:
            decodes_first(step)


@final
@dataclass(frozen=True, slots=True)
class StaticPolicy(Policy):
    """Request-level batching: takes what waits, up to `batch_size`, and none joins until the last one is done."""

    batch_size: int

    def __post_init__(self) -> None:
        _require_positive("batch_size", self.batch_size)

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        if step.running:
            run_batch(step)
        else:
            start_batch(step, self.batch_size)


@final
@dataclass(frozen=True, slots=True)
class DynamicPolicy(Policy):
    """Request-level batching that waits for company: a batch starts when it is full, or when its oldest request has
    waited `timeout_s`."""

    batch_size: int
    timeout_s: int | float

    def __post_init__(self) -> None:
        _require_positive("batch_size", self.batch_size)
        if not 0 <= self.timeout_s < math.inf:
            raise ConfigError(f"timeout_s must be at least 0 and finite, got {self.timeout_s}.")

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        if step.running:
            run_batch(step)
            return
        # An arrival in the future counts as now, so that a batch never waits longer than the time-out.
        oldest_s = min(step.now_s, *(sequence.request.arrival_s for sequence in step.waiting))
        starts_s = oldest_s + self.timeout_s
        is_full = step.num_waiting >= min(self.batch_size, step.num_free_places)
        if is_full or step.now_s >= starts_s:
            start_batch(step, self.batch_size)
        else:
            step.wait_until(starts_s)


@final
@dataclass(frozen=True, slots=True)
class DeadlinePolicy(Policy):
    """Earliest deadline first: by arrival plus the request's `ttft_slo_s`; requests without one come last.

    Attributes:
        max_tokens: Of a step, as in `ChunkedPrefillPolicy`; None: the scheduler's budget.
    """

    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _require_positive("max_tokens", self.max_tokens)

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        slo_s = sequence.request.ttft_slo_s
        deadline_s = math.inf if slo_s is None else sequence.request.arrival_s + slo_s
        return (deadline_s, sequence.arrival_order, sequence.index)

    def plan(self, step: Step) -> None:
        decodes_first(step, self.max_tokens)


@final
@dataclass(frozen=True, slots=True)
class RotatingPolicy(Policy):
    """Decodes first, and prompts by turns: each gets a chunk and goes behind the others (round-robin), newcomers too.

    By order of arrival a short prompt waits until all of a long one before it is computed, chunked or not: chunks keep
    decodes from waiting, and a prompt behind another gains nothing. By turns it waits for a chunk of each. The price:
    prompts that began together also end together, each later than it could have.

    Without chunked prefill a turn is a whole prompt.

    Attributes:
        chunk_tokens: Of a prompt's turn. The last ones of a step share what its budget leaves.
        max_tokens: Of a step, as in `ChunkedPrefillPolicy`; None: the scheduler's budget.
    """

    chunk_tokens: int
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        _require_positive("chunk_tokens", self.chunk_tokens)
        if self.max_tokens is not None:
            _require_positive("max_tokens", self.max_tokens)

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        begun = []
        for sequence in step.running:
            if sequence.is_decoding:
                step.decode(sequence)
            else:
                begun.append(sequence)
        begun = [sequence for sequence in begun if sequence.table is not None]  # and not preempted for a decode
        if self.max_tokens is not None:
            step.limit(self.max_tokens)
        # As many newcomers as may get a turn. Their turns come by age, and they take them by rank.
        newcomers = list(islice(step.waiting, 1 + step.budget // self.chunk_tokens))
        turns = [(sequence, sequence.table is not None) for sequence in (*begun, *newcomers)]
        by_rank = iter(newcomers)
        is_closed = False
        for sequence, is_begun in sorted(turns, key=lambda turn: turn[0].last_turn):
            if is_begun:
                step.prefill(sequence, self.chunk_tokens)
            elif not is_closed:
                is_closed = not step.admit(next(by_rank), self.chunk_tokens)


@final
@dataclass(frozen=True, slots=True)
class FairPolicy(Policy):
    """Decodes first, then the prompts begun; newcomers are let in from the tenant that was served least, by virtual
    token counters (VTC, arXiv:2401.00588; see `TenantCounters`). So a tenant with many requests takes none of the share
    of one with few, and what a tenant leaves is the others'. Among one tenant's requests priority and arrival decide.

    Attributes:
        max_tokens: Of a step, as in `ChunkedPrefillPolicy`; None: the scheduler's budget.
    """

    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _require_positive("max_tokens", self.max_tokens)

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        decodes_and_begun(step, self.max_tokens)
        if not (step.budget and step.num_free_places):
            return
        of_tenant: dict[str, deque[Sequence]] = defaultdict(deque)
        for sequence in step.waiting:
            of_tenant[sequence.request.tenant].append(sequence)
        while of_tenant:
            tenant = min(of_tenant, key=lambda tenant: (step.served(tenant), of_tenant[tenant][0].rank))
            if not step.admit(of_tenant[tenant].popleft()):
                return
            if not of_tenant[tenant]:
                del of_tenant[tenant]


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}.")
