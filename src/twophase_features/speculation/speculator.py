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
    """Puts drafts of any drafter into a step's plan, for the model to verify. The engine calls `draft`, `note_results`
    and `forget`, which do not raise.

    Args:
        drafter: Proposes tokens. Its exceptions and invalid drafts cost time and do not change outputs.
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
        self._knows_plan = False
        self._has_complained = False

    @property
    def num_wanted(self) -> int:
        """Drafts wanted of each decode in the next step: 0 while drafting does not pay."""
        return self.max_drafts if self.gate is None or self.gate.is_drafting else 0

    def draft(
        self, plan: StepPlan, scheduler: Scheduler, entry_of: Callable[[ScheduledChunk], BatchEntry], vocab_size: int
    ) -> StepPlan:
        """The plan with drafts, as far as there is room for them."""
        plan = with_room(plan, scheduler, self.num_wanted)
        self.note_plan(plan)
        requests = [_request(entry_of(chunk), vocab_size) for chunk in plan.decodes if chunk.num_drafts]
        drafts = zip(requests, self.propose(requests), strict=True)
        return with_drafts(plan, scheduler, {request.chunk.seq_id: tokens for request, tokens in drafts if tokens})

    def note_plan(self, plan: StepPlan) -> None:
        try:
            self.drafter.note_plan(plan)
            self._knows_plan = True
        except Exception as error:
            self._knows_plan = False
            self._complain(error)

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Valid drafts; [] for requests on which the drafter fails, and for all if it failed on the plan."""
        if not self._knows_plan:
            return [[]] * len(requests)
        proposals = isolate(self._propose, requests)
        for proposal in proposals:
            if isinstance(proposal, Exception):
                self._complain(proposal)
        return [[] if isinstance(proposal, Exception) else proposal for proposal in proposals]

    def _propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
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
