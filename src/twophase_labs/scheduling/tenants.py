"""Two tenants on one simulated engine: one that sends everything at once, and one that asks now and then."""

from twophase.core.request import Request, SamplingParams
from twophase.scheduling.policy import Policy
from twophase_labs.scheduling.classes import COST, LIMITS
from twophase_tools.load.records import RequestRecord
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.simulator import simulate

NUM_GREEDY, NUM_MODEST = 200, 30


def requests() -> list[Request]:
    """200 requests of the tenant 'greedy' at 0 s; one of 'modest' every second, 30 of them. All are alike."""
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    times = [("greedy", number, 0.0) for number in range(NUM_GREEDY)]
    times += [("modest", number, 0.5 + number) for number in range(NUM_MODEST)]
    return [
        Request(f"{tenant}-{number}", (1,) * 100, params, arrival_s=time_s, tenant=tenant)
        for tenant, number, time_s in times
    ]


def run(policy: Policy) -> list[RequestRecord]:
    return list(simulate(requests(), make_scheduler(LIMITS, policy), COST).records)
