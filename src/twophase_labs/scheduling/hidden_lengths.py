"""A run of the scheduler under a simulated clock in which nobody can know how long an answer becomes.

The simulator (twophase_tools.simulate) ends a request at its `max_tokens`, and a policy may read that. Here every
request may become `MAX_OUTPUT_TOKENS` long, and the token that ends it is sampled when its time has come, as a model
would do it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from twophase.core.errors import TwophaseError
from twophase.core.plan import SampledToken, StepPlan
from twophase.core.request import Request, SamplingParams
from twophase.scheduling.policy import Policy
from twophase.scheduling.scheduler import Scheduler
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.workloads import TimedRequest
from twophase_tools.simulate.cost_model import CostModel
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.step_load import load_of

MAX_OUTPUT_TOKENS = 256
END, WORD = 0, 1
MAX_STEPS = 200_000


class TooManyStepsError(TwophaseError):
    """The run does not come to an end."""


@dataclass
class _Life:
    """What became of a request so far."""

    request: TimedRequest
    first_scheduled_s: float | None = None
    token_times_s: tuple[float, ...] = ()
    num_preemptions: int = 0

    def record(self) -> RequestRecord:
        request = self.request
        end_s = self.token_times_s[-1]
        return RequestRecord(
            request.request_id,
            request.arrival_s,
            self.first_scheduled_s,
            self.token_times_s,
            end_s,
            request.num_prompt_tokens,
            num_preemptions=self.num_preemptions,
            finish_reason="stop",
        )


def play(
    workload: Iterable[TimedRequest],
    policy: Policy | None,
    limits: Mapping[str, Any],
    cost: CostModel,
    ttft_slo_s: float | None = None,
) -> list[RequestRecord]:
    """Serve a workload (no answer longer than `MAX_OUTPUT_TOKENS`) to its end; what became of each request.

    Raises:
        PolicyError, ConfigError: The policy plans nonsense, or the limits are none.
        TooManyStepsError: No end after `MAX_STEPS` steps.
    """
    scheduler = make_scheduler(dict(limits), policy)
    coming = sorted(workload, key=lambda request: request.arrival_s)[::-1]
    lives = {request.request_id: _Life(request) for request in coming}
    params = SamplingParams(temperature=0.0, max_tokens=MAX_OUTPUT_TOKENS, stop_token_ids=[END])
    now_s = 0.0
    for _ in range(MAX_STEPS):
        while coming and coming[-1].arrival_s <= now_s:
            scheduler.add(_asked(coming.pop(), params, ttft_slo_s))
        if not scheduler.has_unfinished:
            if not coming:
                return [life.record() for life in lives.values()][::-1]
            now_s = coming[-1].arrival_s
            continue
        plan = scheduler.schedule(now_s)
        if plan.is_empty:
            next_s = coming[-1].arrival_s if coming else math.inf
            now_s = min(next_s, math.inf if plan.wake_s is None else plan.wake_s)
            continue
        started_s, now_s = now_s, now_s + float(cost.cost(load_of(plan)).total_s)
        _confirm(scheduler, plan, lives, started_s, now_s)
    raise TooManyStepsError(f"after {MAX_STEPS:,} steps {len(scheduler.sequences)} requests are still unfinished.")


def _asked(timed: TimedRequest, params: SamplingParams, ttft_slo_s: float | None) -> Request:
    asked = Request(timed.request_id, (WORD,) * timed.num_prompt_tokens, params, arrival_s=timed.arrival_s)
    return asked if ttft_slo_s is None else replace(asked, ttft_slo_s=ttft_slo_s)


def _confirm(scheduler: Scheduler, plan: StepPlan, lives: Mapping[str, _Life], start_s: float, end_s: float) -> None:
    sampled = {}
    for seq_id in plan.preempted:
        lives[scheduler.sequences[seq_id].request.request_id].num_preemptions += 1
    for chunk in plan.chunks:
        life = lives[scheduler.sequences[chunk.seq_id].request.request_id]
        if life.first_scheduled_s is None:
            life.first_scheduled_s = start_s
        if chunk.num_samples:
            life.token_times_s += (end_s,)
            is_end = len(life.token_times_s) == life.request.num_output_tokens
            sampled[chunk.seq_id] = (SampledToken(END if is_end else WORD),)
    scheduler.update(plan, sampled)
