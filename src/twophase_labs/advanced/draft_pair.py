"""A draft model beside the engine: its probabilities, a drafter that draws from them, and runs that measure both."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch
from transformers import DynamicCache

from twophase import SamplingParams
from twophase.core.plan import StepPlan
from twophase_features.speculation.drafter import DraftRequest
from twophase_labs.advanced import draft_engine
from twophase_labs.advanced.draft_chance import Chance
from twophase_labs.advanced.draft_engine import Run
from twophase_labs.advanced.own_engine import Verify, VerifyingRunner
from twophase_labs.advanced.prefix_service import shared_engine
from twophase_labs.advanced.train_draft import DraftNetwork, file_of_draft, load, make, prompts

NextProbs = Callable[[list[int]], np.ndarray]


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


def draft_with_model(
    next_probs: NextProbs, token_ids: list[int], num_draft: int, chance: Chance
) -> tuple[list[int], np.ndarray]:
    """One draft behind the other, and the rows `[num_draft, V]` that they were drawn from."""
    drafts: list[int] = []
    rows = []
    for _ in range(num_draft):
        rows.append(next_probs(token_ids + drafts))
        drafts.append(chance.draw(rows[-1]))
    return drafts, np.stack(rows)


@final
class ModelDrafter:
    """A small model as the engine asks for drafts; the rows q of a run are kept for its verifier."""

    def __init__(self, model: SmallModel, temperature: int | float, chance: Chance) -> None:
        self.seconds: list[float] = []  # per draft
        self._next_probs, self._chance = model.next_probs(temperature), chance
        self._latest: dict[int, tuple[list[int], np.ndarray]] = {}

    def note_plan(self, plan: StepPlan) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        proposals = []
        for request in requests:
            start_s = time.perf_counter()
            drafts, rows = draft_with_model(
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


def run(
    asked: Sequence[str],
    temperature: int | float,
    *,
    drafting: tuple[SmallModel, Verify] | None = None,
    num_drafts: int = 4,
    num_tokens: int = 28,
    together: bool = False,
    seed: int = 0,
) -> tuple[Run, float]:
    """Answer these prompts with drafts of a small model or without; the median of the seconds of making a draft."""
    params = SamplingParams(temperature=temperature, max_tokens=num_tokens, seed=seed, ignore_eos=True)
    if drafting is None:
        return draft_engine.run(asked, params, None, together=together), 0.0
    model, verify = drafting
    drafter = ModelDrafter(model, temperature, Chance(seed))
    engine: Any = shared_engine().engine
    runner = engine._runner
    engine._runner = VerifyingRunner(runner, verify, lambda _: temperature, Chance(seed + 1), rows_of=drafter.rows_of)
    try:
        drafted = draft_engine.run(asked, params, drafter, num_drafts=num_drafts, together=together)
    finally:
        engine._runner = runner
    return drafted, statistics.median(drafter.seconds)


def held_out() -> list[str]:
    """Prompts of the draft model's domain that it was not trained on."""
    return prompts()[1]
