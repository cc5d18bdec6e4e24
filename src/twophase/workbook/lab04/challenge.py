"""The challenge's rules: an imagined machine, its traffic, what was promised, and the score."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from twophase.scheduling.policy import Policy
from twophase.serving.arrivals import Bursty
from twophase.serving.lengths import LogNormalLengths, UniformLengths
from twophase.serving.records import RequestRecord
from twophase.serving.slo import Slo
from twophase.serving.workloads import TimedRequest
from twophase.simulate.cost_model import CostModel, LinearCostModel
from twophase.workbook.lab04.hidden_lengths import play

COST = LinearCostModel(per_step_s=0.02, per_token_s=0.15e-3, per_context_s=0.2e-6, per_pair_s=20e-9)
SLO = Slo(ttft_s=1.5, tpot_s=0.045)
POOL = {"num_blocks": 640, "block_size": 16, "max_model_len": 2048}
LIMITS = {"max_num_seqs": 64, "max_num_batched_tokens": 512}
NUM_REQUESTS, RATE_PER_S = 400, 9.0
SHARE_OF_DOCUMENTS = 0.2

CHAT = (LogNormalLengths(90, 0.7, 8, 400), LogNormalLengths(60, 0.7, 4, 256))
DOCUMENTS = (UniformLengths(600, 1600), LogNormalLengths(30, 0.6, 4, 120))


def traffic(seed: int = 0) -> list[TimedRequest]:
    """Bursts of short questions, and every fifth request a long document."""
    rng = random.Random(f"challenge {seed}")
    times_s = Bursty(RATE_PER_S, 2.0).times_s(rng)
    requests = []
    for number in range(NUM_REQUESTS):
        prompts, outputs = DOCUMENTS if rng.random() < SHARE_OF_DOCUMENTS else CHAT
        requests.append(TimedRequest(str(number), next(times_s), prompts.draw(rng), outputs.draw(rng)))
    return requests


def serve(policy: Policy, limits: Mapping[str, Any] | None = None, seed: int = 0) -> list[RequestRecord]:
    return play(traffic(seed), policy, POOL | LIMITS | dict(limits or {}), COST, SLO.ttft_s)


def score(records: list[RequestRecord]) -> float:
    """Requests that kept both promises, in per cent of all."""
    return 100 * sum(bool(record.meets(SLO)) for record in records) / len(records)
