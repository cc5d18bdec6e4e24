"""What is left of the difference between reading and writing once there is a cache, measured on SmolLM2."""

from statistics import median

import torch
from jaxtyping import Int
from torch import Tensor

from twophase_labs.autoregression.toy import with_cache
from twophase_labs.kit.models import smollm2
from twophase_labs.kit.timing import Timed, seconds

STORY = "Once upon a time there was a machine that could read a whole letter at a glance, and then needed all evening "
NUM_READ, NUM_WRITTEN = 40, 10


def story_ids() -> Int[Tensor, " T"]:
    """The 40 tokens that the lab's first cell reads."""
    _, tokenizer = smollm2()
    return tokenizer(2 * STORY, return_tensors="pt").input_ids[0, :NUM_READ]


def times_a_token_read() -> float:
    """How many times as long as a token read a token takes that is written with a cache."""
    model, _ = smollm2()
    ids = story_ids()[None]
    read_s = seconds(lambda: model(ids), repeats=3) / NUM_READ
    step, cache = Timed(with_cache(model)), None
    for _ in range(NUM_WRITTEN):
        logits, cache = step(ids, cache)
        ids = logits[:, -1:].argmax(-1)
    assert torch.is_tensor(ids)
    return median(step.elapsed_s[1:]) / read_s
