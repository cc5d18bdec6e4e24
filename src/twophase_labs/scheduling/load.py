"""Users who arrive at random, with short prompts and answers of all lengths."""

import random

from twophase_tools.load.arrivals import Poisson
from twophase_tools.load.lengths import UniformLengths
from twophase_tools.load.workloads import RandomWorkload, TimedRequest

NUM_DRAWN, MAX_NUM_SEQS, LONGEST = 400, 8, 200


def drawn_lengths() -> list[int]:
    """The lengths of the prediction 4.1: 400 answers, any length from 1 to 200 tokens equally likely."""
    rng = random.Random("4.3")
    return [rng.randint(1, LONGEST) for _ in range(NUM_DRAWN)]


def short_chats(num_requests: int, rate_per_s: float | int) -> list[TimedRequest]:
    """Prompts of 16 to 64 tokens, answers of 8 to 48. The same requests at every rate; only closer together."""
    prompts, outputs = UniformLengths(16, 64), UniformLengths(8, 48)
    return list(RandomWorkload("short chats", num_requests, Poisson(rate_per_s), prompts, outputs))
