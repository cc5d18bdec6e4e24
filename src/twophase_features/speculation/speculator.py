"""Isolates a drafter's errors, drafts only while drafting pays, and counts accepted drafts."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import final

from twophase.core.plan import SampledToken, ScheduledChunk, StepPlan
from twophase.engine.model_run import BatchEntry, isolate, row_after
from twophase.scheduling.scheduler import Scheduler
from twophase_features.speculation.drafter import Drafter, DraftRequest
from twophase_features.speculation.drafters import usable
from twophase_features.speculation.gate import SpeculationGate
from twophase_features.speculation.room import with_drafts, with_room

logger = logging.getLogger(__name__)


@final
class GatedSpeculator:
    """Puts drafts of any drafter into a step's plan, for the model to verify. Its methods do not raise: a drafter's
    exceptions and invalid drafts cost time and do not change outputs.

    Args:
        drafter: Proposes tokens.
        max_drafts: Drafts a sequence may have in a step.
        gate: Decides whether drafting pays; None: always draft.

    Attributes:
        num_drafted, num_accepted: By place in a run (0 is the first draft): drafts verified, and accepted.
    """

    def __init__(self, drafter: Drafter, max_drafts: int, gate: SpeculationGate | None) -> None:
        self.drafter = drafter
        self.max_drafts = max_drafts
        self.gate = gate
        self.num_drafted: Counter[int] = Counter()
        self.num_accepted: Counter[int] = Counter()
        self._has_complained = False

    def draft(
        self, plan: StepPlan, scheduler: Scheduler, entry_of: Callable[[ScheduledChunk], BatchEntry], vocab_size: int
    ) -> StepPlan:
        """The plan with drafts, as far as there is room for them, for sequences on which the drafter does not fail;
        without drafts while drafting does not pay."""
        is_drafting = self.gate is None or self.gate.is_drafting
        plan = with_room(plan, scheduler, self.max_drafts if is_drafting else 0)
        try:
            self.drafter.note_plan(plan)
        except Exception as error:  # its drafts might be for the blocks of another step
            self._complain(error)
            return with_drafts(plan, scheduler, {})
        requests = [_request(entry_of(chunk), vocab_size) for chunk in plan.decodes if chunk.num_drafts]
        drafts: dict[int, list[int]] = {}
        for request, proposal in zip(requests, isolate(self._propose, requests), strict=True):
            if isinstance(proposal, Exception):
                self._complain(proposal)
            elif proposal:
                drafts[request.chunk.seq_id] = proposal
        return with_drafts(plan, scheduler, drafts)

    def _propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Valid drafts for each request."""
        proposals = self.drafter.propose(requests)
        if len(proposals) != len(requests):
            raise ValueError(f"{len(requests)} requests for drafts got {len(proposals)} answers.")
        drafts = []
        for request, proposal in zip(requests, proposals, strict=True):
            tokens = usable(proposal[: request.chunk.num_drafts], request.vocab_size, request.stop_token_ids)
            drafts.append(tokens[: request.num_allowed(tokens)])
        return drafts

    def forget(self, seq_id: int) -> None:
        try:
            self.drafter.forget(seq_id)
        except Exception as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        # Once: a drafter that fails in one step mostly fails in thousands.
        if not self._has_complained:
            logger.warning("drafting failed; such steps run without drafts: %s: %s", type(error).__name__, error)
        self._has_complained = True

    def note_results(
        self, plan: StepPlan, results: Mapping[int, tuple[SampledToken, ...] | Exception], elapsed_s: float
    ) -> None:
        """Count drafts and accepted drafts by position; the gate measures steps without prefills only."""
        runs = {seq_id: result for seq_id, result in results.items() if not isinstance(result, Exception)}
        if self.gate is not None and not plan.prefills:
            self.gate.note_step(elapsed_s, sum(map(len, runs.values())))
        for chunk in plan.decodes:
            if chunk.num_drafts and chunk.seq_id in runs:
                self.num_drafted.update(range(chunk.num_drafts))
                self.num_accepted.update(range(len(runs[chunk.seq_id]) - 1))


def _request(entry: BatchEntry, vocab_size: int) -> DraftRequest:
    """The request for drafts of a sequence that decodes."""
    chunk, sequence, state = entry
    token_ids, constraint = sequence.token_ids, state.completions[sequence.index].constraint
    num_allowed = len if constraint is None else partial(constraint.num_allowed, token_ids, sequence.num_prompt_tokens)
    return DraftRequest(chunk, token_ids, sequence.stop_token_ids, partial(row_after, entry), num_allowed, vocab_size)
