"""A run of the scheduler under a simulated clock in which nobody can know how long an answer becomes.

The simulator (twophase_tools.simulate) ends a request at its `max_tokens`, and a policy may read that. Here every
request may become `MAX_OUTPUT_TOKENS` long, and the token that ends it is sampled when its time has come, as a model
would do it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from twophase.core.request import Request, SamplingParams
from twophase.scheduling.policy import Policy
from twophase_labs.scheduling.virtual import TooManyStepsError as TooManyStepsError
from twophase_labs.scheduling.virtual import VirtualRun, serve
from twophase_tools.load.workloads import TimedRequest
from twophase_tools.simulate.cost_model import CostModel
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.step_load import load_of

MAX_OUTPUT_TOKENS = 256
END, WORD = 0, 1
MAX_STEPS = 200_000


def play(
    workload: Iterable[TimedRequest],
    policy: Policy | None,
    limits: Mapping[str, Any],
    cost: CostModel,
    ttft_slo_s: float | None = None,
) -> VirtualRun:
    """Serve a workload (no answer longer than `MAX_OUTPUT_TOKENS`) to its end; what became of each request.

    Raises:
        PolicyError, ConfigError: The policy plans nonsense, or the limits are none.
        TooManyStepsError: No end after `MAX_STEPS` steps.
    """
    timed = sorted(workload, key=lambda request: request.arrival_s)
    lengths = {request.request_id: request.num_output_tokens for request in timed}
    params = SamplingParams(temperature=0.0, max_tokens=MAX_OUTPUT_TOKENS, stop_token_ids=[END])
    asked = [
        Request(
            each.request_id, (WORD,) * each.num_prompt_tokens, params, arrival_s=each.arrival_s, ttft_slo_s=ttft_slo_s
        )
        for each in timed
    ]
    return serve(
        make_scheduler(dict(limits), policy),
        asked,
        lambda plan: float(cost.cost(load_of(plan)).total_s),
        lambda name, number: END if number + 1 == lengths[name] else WORD,
        max_steps=MAX_STEPS,
    )
