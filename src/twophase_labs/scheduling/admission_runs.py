"""One pool that is too small, and answers of unknown lengths: what comes of each way to admit."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from twophase_labs.scheduling.hidden_lengths import MAX_OUTPUT_TOKENS, play
from twophase_labs.scheduling.pressure import COST, CROWDED
from twophase_tools.load.lengths import LogNormalLengths
from twophase_tools.load.steps import num_tokens
from twophase_tools.load.workloads import TimedRequest

NUM_REQUESTS, PROMPT_TOKENS = 100, 16
SEEDS = (0, 1, 2)
LENGTHS = LogNormalLengths(60, 0.8, 4, MAX_OUTPUT_TOKENS)


@dataclass(frozen=True)
class Admitted:
    """Means over the seeds.

    Attributes:
        num_preemptions: Of all requests.
        times_needed: Tokens computed for each token needed.
        batch: Sequences that decode in a step.
        elapsed_s: Until the last request ended.
    """

    num_preemptions: float
    times_needed: float
    batch: float
    elapsed_s: float


def workload(seed: int) -> list[TimedRequest]:
    """All at once; each may become MAX_OUTPUT_TOKENS long, and few do."""
    rng = random.Random(f"admission {seed}")
    return [TimedRequest(str(i), 0.0, PROMPT_TOKENS, LENGTHS.draw(rng)) for i in range(NUM_REQUESTS)]


def admitted(limits: Mapping[str, Any]) -> Admitted:
    """The requests under these limits, which say how to admit."""
    runs = [_run(seed, limits) for seed in SEEDS]
    return Admitted(*(mean(column) for column in zip(*runs, strict=True)))


def _run(seed: int, limits: Mapping[str, Any]) -> tuple[float, float, float, float]:
    requests = workload(seed)
    records, steps = play(requests, None, CROWDED | dict(limits), COST)
    needed = sum(one.num_prompt_tokens + one.num_output_tokens - 1 for one in requests)
    return (
        sum(record.num_preemptions for record in records),
        sum(map(num_tokens, steps)) / needed,
        mean(step.num_decodes for step in steps),
        max(float(record.finished_s or 0) for record in records),
    )
