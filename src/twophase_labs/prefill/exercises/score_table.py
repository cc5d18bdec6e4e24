"""2.4 The table of scores, and what it does to memory."""

import torch
from torch import Tensor

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Number
from twophase_labs.prefill.peak_memory import attention_inputs, peak_bytes


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What exercise 2.1 does: the scores of all pairs, then the rest."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(0, 1).flatten(1)


def growth_from(num_tokens: int) -> float:
    """How many times the peak memory of plain attention grows when the prompt doubles."""
    once, twice = attention_inputs(num_tokens), attention_inputs(2 * num_tokens)
    return peak_bytes(lambda: plain_attention(*twice)) / peak_bytes(lambda: plain_attention(*once))


EXERCISES = (
    Exercise(
        id="2.7",
        title="Twice the prompt, how much more memory?",
        kind="prediction",
        names=("guess_2_7",),
        points=1,
        minutes=3,
        objective="predict how the memory of attention grows with the prompt",
        hints=("The largest thing in memory is the table of scores. How many rows and columns has it?",),
        question=Number(
            lambda: growth_from(1024),
            rel=0.2,
            unit="times",
            hint="Which tensor of exercise 2.1 is the largest when L is in the thousands, and how many numbers has it?",
        ),
        time_limit_s=60,
    ),
)
