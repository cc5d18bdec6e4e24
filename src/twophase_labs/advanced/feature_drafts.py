"""Drafts from the large model's own hidden states: a head in the manner of EAGLE, but linear, fitted by least squares.

The hidden state h from which a token x was drawn, and the embedding of x, go in; out comes an estimate of the next
hidden state, and the large model's own output matrix makes logits of it.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, final
from unittest.mock import patch

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase import SamplingParams
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import TakeLogits
from twophase_labs.advanced.prefix_service import shared_engine
from twophase_labs.kit.models import smollm2

WHO = ("lighthouse keeper", "baker", "young girl", "old sailor", "teacher", "gardener")
WHERE = ("by the sea", "in the mountains", "in a small village", "on an island")
WHAT = ("a lost key", "a strange letter", "a wounded bird", "an old map")
STORIES = [f"Write a story about a {who} {where} and {what}." for who, where, what in product(WHO, WHERE, WHAT)]
random.Random(0).shuffle(STORIES)
FITTED, HELD_OUT = STORIES[:48], STORIES[64:76]
OUTSIDE = ("Explain what a hash table is.", "List five European capitals and their rivers.")
ANSWER = SamplingParams(temperature=0, max_tokens=36, ignore_eos=True)
RIDGE = 30.0  # keeps the map small where the answers say little


@final
class FeatureRunner:
    """A runner that keeps hidden states: `states[seq_id][i]` is the one from which token i of a sequence is drawn."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.states: defaultdict[int, dict[int, Float[Tensor, " D"]]] = defaultdict(dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, chunks: Sequence[ScheduledChunk], score: TakeLogits | None = None) -> Float[Tensor, "R V"] | None:
        model = self._runner.model
        with patch.object(model, "logits", wraps=model.logits) as logits_of:
            logits = self._runner.run(chunks, score)
        # Copied, because the next step's graph may write to the same memory.
        rows = iter(() if logits is None else logits_of.call_args.args[0].clone())
        for chunk in chunks:
            end = chunk.start + len(chunk.token_ids)
            drawn = range(end - chunk.num_drafts, end + 1) if chunk.num_samples else ()
            self.states[chunk.seq_id].update((i, next(rows)) for i in drawn)
        return logits


class Places(NamedTuple):
    """Of each token of some answers but the last: what it was drawn from, its embedding, and both of the next one."""

    hidden: Float[Tensor, "N D"]
    embedded: Float[Tensor, "N D"]
    next_hidden: Float[Tensor, "N D"]
    next_ids: Int[Tensor, " N"]


def places_of(asked: Sequence[str]) -> Places:
    """Let SmolLM2 answer these prompts, all at once."""
    llm, embed = shared_engine(), smollm2()[0].model.embed_tokens
    runner = FeatureRunner(llm.engine._runner)
    with patch.object(llm.engine, "_runner", runner):
        outputs = llm.chat([[{"role": "user", "content": one}] for one in asked], ANSWER, use_tqdm=False)
    parts = []
    for output, (_, states) in zip(outputs, sorted(runner.states.items()), strict=True):  # in the order of the prompts
        hidden, ids = torch.stack(list(states.values())), torch.tensor(output.outputs[0].token_ids)
        parts.append((hidden[:-1], embed(ids[:-1]), hidden[1:], ids[1:]))
    return Places(*map(torch.cat, zip(*parts, strict=True)))


@dataclass(frozen=True)
class Head:
    """A linear map from the two inputs to the next hidden state of `model`, a Llama of transformers.

    Attributes:
        types: The tokens that it may draft, K of them; all others have probability 0 (the idea of FR-Spec,
            arXiv:2502.14856).
    """

    weight: Float[Tensor, "I D"]
    bias: Float[Tensor, " D"]
    types: Int[Tensor, " K"]
    model: Any

    def __call__(self, inputs: Float[Tensor, "*N I"]) -> Float[Tensor, "*N D"]:
        return inputs @ self.weight + self.bias

    def after(self, hidden: Float[Tensor, " D"], token_id: int) -> Float[Tensor, " D"]:
        """The next hidden state, if this token was drawn from `hidden`."""
        return self(torch.cat([hidden, self.model.model.embed_tokens.weight[token_id]]))

    def logits(self, hidden: Float[Tensor, "*N D"]) -> Float[Tensor, "*N K"]:
        """Of `types`, by the large model's output matrix."""
        return hidden @ self.model.lm_head.weight[self.types].T

    def likeliest(self, hidden: Float[Tensor, "*N D"], num: int) -> Int[Tensor, "*N num"]:
        return self.types[self.logits(hidden).topk(num).indices]

    def probs(self, hidden: Float[Tensor, " D"], temperature: int | float) -> Float[np.ndarray, " V"]:
        """Of all tokens. At temperature 0 all of it is on the likeliest."""
        row = np.zeros(len(self.model.lm_head.weight))
        row[self.types.numpy()] = (self.logits(hidden).double() / max(temperature, 1e-9)).softmax(-1).numpy()
        return row


def fit(inputs: Float[Tensor, "N I"], places: Places) -> Head:
    """The map with the smallest squared error of the next hidden state, by ridge regression."""
    mean, target_mean = inputs.mean(0), places.next_hidden.mean(0)
    scale = inputs.std(0) + 1e-6
    x, y = (inputs - mean) / scale, places.next_hidden - target_mean
    weight = torch.linalg.solve(x.T @ x + RIDGE * torch.eye(x.shape[1]), x.T @ y) / scale[:, None]
    return Head(weight, target_mean - mean @ weight, places.next_ids.unique(), smollm2()[0])
