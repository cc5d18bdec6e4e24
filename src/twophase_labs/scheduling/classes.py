"""Two classes of requests on one simulated engine: people who wait, and a batch job that can."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from twophase.core.request import Request, SamplingParams
from twophase.scheduling.policy import Policy
from twophase_tools.load.records import RequestRecord
from twophase_tools.simulate.cost_model import LinearCostModel
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.simulator import SimulationResult, simulate

COST = LinearCostModel(per_step_s=0.02, per_token_s=0.5e-3, per_context_s=0.5e-6)
LIMITS: dict[str, Any] = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 256,
    "max_model_len": 1024,
    "num_blocks": 400,
    "block_size": 16,
}
PEOPLE, BATCH = 0, 1
RUSH_S = 60.0


def requests(seed: int = 0) -> list[Request]:
    """A minute of people who come faster than they can be served, and then one of few; a batch request every 3 s."""
    rng = random.Random(f"two classes {seed}")
    found: list[Request] = []

    def add(arrival_s: float, priority: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=rng.randint(30, 90), ignore_eos=True)
        prompt = (1 + priority,) * rng.randint(40, 160)
        name = ("person" if priority == PEOPLE else "batch") + f"-{len(found)}"
        found.append(Request(name, prompt, params, arrival_s=arrival_s, priority=priority))

    time_s = 0.0
    while time_s < 2 * RUSH_S:
        time_s += rng.expovariate(7.6 if time_s < RUSH_S else 2.0)
        add(time_s, PEOPLE)
    for number in range(20):
        add(1.0 + 3.0 * number, BATCH)
    found.sort(key=lambda request: request.arrival_s)
    return found


def run(policy: Policy, found: Sequence[Request] | None = None) -> list[RequestRecord]:
    return list(simulate(found or requests(), make_scheduler(LIMITS, policy), COST).records)


def of_class(records: Sequence[RequestRecord], name: str) -> list[RequestRecord]:
    return [record for record in records if record.request_id.startswith(name)]


def ttfts(records: Sequence[RequestRecord]) -> list[float]:
    return [float(record.ttft_s) for record in records if record.ttft_s is not None]


def rush(policy: Policy) -> SimulationResult:
    """The minute of rush and the one after it, with a prefix cache: records and the trace of every step.

    All prompts begin with the same 16 tokens, and differ from then on.
    """
    found = requests()
    asked = [
        replace(one, prompt_token_ids=(0,) * 16 + tuple(range(100 + number, 84 + number + len(one.prompt_token_ids))))
        for number, one in enumerate(found)
    ]
    return simulate(asked, make_scheduler(LIMITS, policy, enable_prefix_caching=True), COST)
