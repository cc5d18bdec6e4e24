"""A head on hidden states as the engine's drafter: its drafts are drawn, so there is a q for a learner's `verify`."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import final
from unittest.mock import patch

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from twophase import SamplingParams
from twophase.core.plan import StepPlan
from twophase_features.speculation.drafter import DraftRequest
from twophase_labs.advanced import draft_engine
from twophase_labs.advanced.draft_chance import Chance
from twophase_labs.advanced.draft_engine import Run
from twophase_labs.advanced.feature_drafts import FeatureRunner, Head
from twophase_labs.advanced.own_engine import Verify, VerifyingRunner
from twophase_labs.advanced.prefix_service import shared_engine


@final
class HeadDrafter:
    """Draws one draft behind the other; from the second one on, the head reads its own estimates.

    Args:
        states: As `FeatureRunner` keeps them.

    Attributes:
        rows: The rows q [k, V] that a sequence's latest drafts were drawn from, by its id.
        seconds: Of each draft.
    """

    def __init__(
        self,
        head: Head,
        states: Mapping[int, Mapping[int, Float[Tensor, " D"]]],
        temperature: int | float,
        chance: Chance,
    ) -> None:
        self._head, self._states, self._temperature, self._chance = head, states, temperature, chance
        self.rows: dict[int, np.ndarray] = {}
        self.seconds: list[float] = []

    def note_plan(self, plan: StepPlan) -> None:
        pass

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        proposals = []
        for chunk, token_ids, *_ in requests:
            token, hidden = token_ids[-1], self._states[chunk.seq_id][len(token_ids) - 1]
            drafts, rows = [], []
            for _ in range(chunk.num_drafts):
                start_s = time.perf_counter()
                hidden = self._head.after(hidden, token)
                rows.append(self._head.probs(hidden, self._temperature))
                token = self._chance.draw(rows[-1])
                drafts.append(token)
                self.seconds.append(time.perf_counter() - start_s)
            self.rows[chunk.seq_id] = np.stack(rows)
            proposals.append(drafts)
        return proposals

    def forget(self, seq_id: int) -> None:
        self.rows.pop(seq_id, None)


def run(
    asked: Sequence[str],
    temperature: int | float,
    head: Head | None = None,
    verify: Verify | None = None,
    *,
    num_drafts: int = 3,
    num_tokens: int = 20,
    together: bool = False,
) -> tuple[Run, float]:
    """Answer these prompts with drafts of a head or without; the median of the seconds of making a draft."""
    params = SamplingParams(temperature=temperature, max_tokens=num_tokens, seed=0, ignore_eos=True)
    if head is None or verify is None:
        return draft_engine.run(asked, params, None, together=together), 0.0
    engine = shared_engine().engine
    features = FeatureRunner(engine._runner)
    drafter = HeadDrafter(head, features.states, temperature, Chance(0))
    runner = VerifyingRunner(features, verify, lambda _: temperature, Chance(1), rows_of=drafter.rows.__getitem__)
    with patch.object(engine, "_runner", runner):
        drafted = draft_engine.run(asked, params, drafter, num_drafts=num_drafts, together=together)
    return drafted, statistics.median(drafter.seconds)
