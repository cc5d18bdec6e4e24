"""A draft model beside the engine: its probabilities, a drafter that asks your function, and runs that measure both."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from transformers import DynamicCache

from twophase import SamplingParams
from twophase.core.plan import StepPlan
from twophase_features.speculation.drafter import DraftRequest
from twophase_features.speculation.speculator import GatedSpeculator
from twophase_labs.advanced.draft_chance import Chance
from twophase_labs.advanced.own_engine import Verify, VerifyingRunner
from twophase_labs.advanced.prefix_service import shared_engine
from twophase_labs.advanced.train_draft import DraftNetwork, file_of_draft, load, make, prompts

NextProbs = Callable[[list[int]], np.ndarray]
DraftWithModel = Callable[[NextProbs, list[int], int, Chance], tuple[list[int], np.ndarray]]


def open_draft() -> "SmallModel":
    """The draft model from the cache folder. If it is not there yet it is trained first, which takes a minute."""
    if not file_of_draft().exists():
        print("training the draft model: once, about a minute")
        make(file_of_draft())
    return SmallModel(load(file_of_draft()))


@final
class SmallModel:
    """Next-token probabilities of a draft network over the whole vocabulary. K and V of one text are kept."""

    def __init__(self, network: DraftNetwork) -> None:
        self.network = network
        self.vocab_size = int(network.body.embed_tokens.num_embeddings)
        self.num_weights = sum(value.numel() for name, value in network.own_state().items() if name != "types")
        self._types = network.types.numpy()
        self._past = DynamicCache()
        self._ids: list[int] = []

    def next_probs(self, temperature: int | float) -> NextProbs:
        """A function from a text, at least one token, to the probabilities `[V]` of the token after it. At temperature
        0 all of it is on the likeliest token."""

        def probs(token_ids: list[int]) -> np.ndarray:
            logits = self._logits(token_ids)
            row = np.zeros(self.vocab_size)
            if temperature == 0:
                row[self._types[int(logits.argmax())]] = 1.0
            else:
                row[self._types] = (logits.double() / temperature).softmax(-1).numpy()
            return row

        return probs

    @torch.inference_mode()
    def _logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        num_same = 0  # the last token is computed in any case
        for one, other in zip(self._ids, token_ids[:-1], strict=False):
            if one != other:
                break
            num_same += 1
        if num_same < len(self._ids):
            self._past.crop(num_same - len(self._ids))  # below 0: as many are removed at the end
        new = list(token_ids[num_same:])
        hidden = self.network(torch.tensor([new]), past_key_values=self._past, use_cache=True)
        self._ids = list(token_ids)
        return self.network.head(hidden[0, -1])


@final
class ModelDrafter:
    """A learner's `draft_with_model` as the engine asks for drafts; the rows q of a run are kept for its verifier."""

    def __init__(self, model: SmallModel, draft: DraftWithModel, temperature: int | float, chance: Chance) -> None:
        self.seconds: list[float] = []  # per draft
        self._next_probs, self._draft, self._chance = model.next_probs(temperature), draft, chance
        self._latest: dict[int, tuple[list[int], np.ndarray]] = {}

    def note_plan(self, plan: StepPlan) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        proposals = []
        for request in requests:
            start_s = time.perf_counter()
            drafts, rows = self._draft(
                self._next_probs, list(request.token_ids), request.chunk.num_drafts, self._chance
            )
            self.seconds.append((time.perf_counter() - start_s) / max(1, len(drafts)))
            self._latest[request.chunk.seq_id] = drafts, rows
            proposals.append(list(drafts))
        return proposals

    def rows_of(self, seq_id: int, draft_ids: Sequence[int]) -> np.ndarray:
        """What these drafts, the first ones of the latest run, were drawn from, `[k, V]`."""
        drafts, rows = self._latest[seq_id]
        assert list(draft_ids) == drafts[: len(draft_ids)]
        return rows[: len(draft_ids)]

    def forget(self, seq_id: int) -> None:
        self._latest.pop(seq_id, None)


@dataclass(frozen=True)
class PairRun:
    """Stories, one request after the other.

    Attributes:
        num_steps: Of decoding.
        num_drafted, num_accepted: By place in a run; what comes after the first wrong draft was not looked at.
        draft_s: Median seconds of making one draft.
    """

    outputs: tuple[tuple[int, ...], ...]
    num_steps: int
    num_drafted: int
    num_looked_at: int
    num_accepted: int
    decode_s: float
    draft_s: float

    @property
    def tokens_per_s(self) -> float:
        return (sum(map(len, self.outputs)) - len(self.outputs)) / self.decode_s  # the prefill gives the first of each

    @property
    def acceptance(self) -> float:
        return self.num_accepted / self.num_looked_at if self.num_looked_at else 0.0


def run(
    asked: Sequence[str],
    temperature: int | float,
    *,
    drafting: tuple[SmallModel, DraftWithModel, Verify] | None = None,
    num_drafts: int = 4,
    num_tokens: int = 28,
    together: bool = False,
    seed: int = 0,
) -> PairRun:
    """Answer these prompts, one by one or all `together`, with drafts of a small model or without."""
    llm = shared_engine()
    engine: Any = llm.engine
    first_step, runner, drafter = engine.stats().num_steps, engine._runner, None
    if drafting is not None:
        model, draft, verify = drafting
        drafter = ModelDrafter(model, draft, temperature, Chance(seed))
        engine.speculator = GatedSpeculator(drafter, num_drafts, None)
        engine._runner = VerifyingRunner(
            runner, verify, lambda _: temperature, Chance(seed + 1), rows_of=drafter.rows_of
        )
    params = SamplingParams(temperature=temperature, max_tokens=num_tokens, seed=seed, ignore_eos=True)
    groups = [list(asked)] if together else [[one] for one in asked]
    outputs: list[tuple[int, ...]] = []
    speculator = engine.speculator
    try:
        for group in groups:
            answers = llm.chat([[{"role": "user", "content": one}] for one in group], params, use_tqdm=False)
            outputs += [tuple(answer.outputs[0].token_ids) for answer in answers]
    finally:
        engine.speculator, engine._runner = None, runner
    steps = [
        step
        for step in engine.trace
        if step.step >= first_step and step.num_decodes + step.num_verifying == len(step.chunks)
    ]
    num_drafted = num_looked_at = num_accepted = 0
    if speculator is not None:
        drafted, accepted = speculator.num_drafted, speculator.num_accepted
        num_drafted, num_accepted = sum(drafted.values()), sum(accepted.values())
        # A draft is looked at if those before it were right.
        num_looked_at = drafted[0] + sum(min(accepted[i], drafted[i + 1]) for i in range(num_drafts - 1))
    return PairRun(
        tuple(outputs),
        len(steps),
        num_drafted,
        num_looked_at,
        num_accepted,
        sum(step.schedule_s + step.run_s + step.update_s for step in steps),
        statistics.median(drafter.seconds) if drafter is not None and drafter.seconds else 0.0,
    )


def held_out() -> list[str]:
    """Prompts of the draft model's domain that it was not trained on."""
    return prompts()[1]
