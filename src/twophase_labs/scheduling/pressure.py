"""One pool that is too small, simulated: what happens depends on whom the scheduler lets in."""

from dataclasses import dataclass
from typing import Any

from twophase.core.plan import StepTrace
from twophase.scheduling.scheduler import Scheduler
from twophase_tools.load.steps import num_recomputed_tokens, num_tokens
from twophase_tools.load.workloads import TimedRequest
from twophase_tools.simulate.cost_model import LinearCostModel
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.simulator import simulate
from twophase_tools.simulate.traffic import requests_of

# 64 short prompts with long answers, all at once, and room for 1,024 tokens: each grows to 255 of them.
NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16, 240
CROWDED: dict[str, Any] = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 512,
    "max_model_len": 512,
    "num_blocks": 64,
    "block_size": 16,
}
NO_HEADROOM: dict[str, Any] = CROWDED | {"reserve_growth": False}
# A machine whose steps take 20 ms and 3 ms more for each token: the order of size of one CPU thread.
COST = LinearCostModel(per_step_s=0.02, per_token_s=3e-3, per_context_s=2e-6)
TOKENS_NEEDED = NUM_REQUESTS * (PROMPT_TOKENS + OUTPUT_TOKENS - 1)


@dataclass(frozen=True)
class Pressure:
    """A run in numbers; `steps` is its trace."""

    tokens_computed: int
    tokens_recomputed: int
    num_preemptions: int
    elapsed_s: float
    steps: tuple[StepTrace, ...]

    @property
    def times_needed(self) -> float:
        return self.tokens_computed / TOKENS_NEEDED


def under_pressure(scheduler: Scheduler | dict[str, Any]) -> Pressure:
    """The 64 requests on a fresh scheduler, or on one with these limits."""
    made = make_scheduler(scheduler) if isinstance(scheduler, dict) else scheduler
    workload = [TimedRequest(str(i), 0.0, PROMPT_TOKENS, OUTPUT_TOKENS) for i in range(NUM_REQUESTS)]
    run = simulate(requests_of(workload), made, COST)
    last_s = max(float(record.finished_s or 0) for record in run.records)
    return Pressure(
        tokens_computed=sum(map(num_tokens, run.steps)),
        tokens_recomputed=num_recomputed_tokens(run.steps),
        num_preemptions=sum(len(step.preempted) for step in run.steps),
        elapsed_s=last_s,
        steps=run.steps,
    )
