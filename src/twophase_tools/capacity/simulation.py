"""A plan played out: its engines simulated, its mean requests arriving at random."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from twophase.core.errors import ConfigError
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_tools.capacity.config import PlanConfig
from twophase_tools.capacity.memory import memory_table
from twophase_tools.capacity.plan import Plan
from twophase_tools.capacity.pools import CROWDED, PoolsPlan
from twophase_tools.capacity.workload_cost import WorkloadCost
from twophase_tools.load.lengths import UniformLengths
from twophase_tools.load.workloads import Load, RandomWorkload, Workload
from twophase_tools.simulate.fleet import Fleet, run_fleet
from twophase_tools.simulate.fleet_report import FleetReport, Tallies
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.observers import Tally
from twophase_tools.simulate.pools import Link, run_pools
from twophase_tools.simulate.routers import LeastOutstanding, Router
from twophase_tools.simulate.simulator import Replica
from twophase_tools.simulate.traffic import requests_of

DEFAULT_REQUESTS = 500


@final
@dataclass(frozen=True, slots=True)
class PlanRun:
    """What became of a plan's requests.

    Attributes:
        total: From each request's arrival to its end, with the plan's SLO.
        reports: Of the engines that do both; or of the prefill pool, then of the decode pool.
    """

    total: Tally
    reports: tuple[FleetReport, ...]


def workload_of(config: PlanConfig, load: Load | None = None) -> RandomWorkload:
    """Poisson arrivals at the plan's rate, all requests of its mean length; `load` may say how many and how fast."""
    load, mean = load or Load(), config.workload
    num_requests = DEFAULT_REQUESTS if load.num_requests is None else load.num_requests
    prompts, outputs = (UniformLengths(count, count) for count in (mean.prompt_tokens, mean.output_tokens))
    return RandomWorkload("plan", num_requests, load.arrivals(mean.rate), prompts, outputs, seed=load.seed)


def run_plan(
    plan: Plan,
    workload: Workload | None = None,
    *,
    num_engines: int | None = None,
    router: Callable[[], Router] = LeastOutstanding,
) -> PlanRun:
    """Serve the plan's workload, or another one, on as many engines as it says.

    Args:
        num_engines: Without pools; None: as many as run at 80 %.
        router: Makes the router of a fleet, or of each pool.

    Raises:
        ConfigError: The plan has no engine that could serve a mean request, or no number of engines would do; it
            evicts, which this does not play out; or `num_engines` for a plan with pools.
        InvalidRequestError: A request that these engines refuse.
    """
    config = plan.config
    if config.eviction is not None:
        raise ConfigError(f"{config.name}: a simulated engine reads all keys; to play this out, set eviction to none.")
    workload = workload_of(config) if workload is None else workload
    if plan.pools is None:
        return _run_engines(plan, workload, num_engines, router)
    if num_engines is not None:
        raise ConfigError(f"{config.name} has pools, which say how many engines each has; write it there.")
    return _run_pools(plan.pools, workload, router)


def _run_engines(plan: Plan, workload: Workload, num_engines: int | None, router: Callable[[], Router]) -> PlanRun:
    config = plan.config
    if plan.saturated is None:
        raise ConfigError(f"{config.name}: not even one request of mean length fits on an engine.")
    if num_engines is None:
        num_engines = math.ceil(config.workload.rate / (CROWDED * plan.saturated.requests_per_s))
    tallies = Tallies(config.slo)
    fleet = run_fleet(requests_of(workload), _replicas(config, num_engines, tallies), router())
    total = tallies.total
    return PlanRun(total, (FleetReport("engines", fleet, tallies, total.last_end_s),))


def _run_pools(plan: PoolsPlan, workload: Workload, router: Callable[[], Router]) -> PlanRun:
    fleets: list[tuple[str, Fleet, Tallies]] = []
    for name, pool, count in (("prefill", plan.prefill, plan.num_prefill), ("decode", plan.decode, plan.num_decode)):
        if not pool.max_requests:
            raise ConfigError(f"{plan.config.name}: not even one request fits on an engine of the {name} pool.")
        if count is None:
            raise ConfigError(f"{plan.config.name}: no number of engines in the {name} pool would do; say how many.")
        tallies = Tallies(plan.config.slo)
        fleets.append((name, Fleet(_replicas(pool.config, count, tallies), router()), tallies))
    link = Link(plan.pools.link_bytes_per_s, plan.config.shape.kv_bytes_per_token, plan.pools.link_latency_s)
    (_, prefill, _), (_, decode, tallies) = fleets
    run_pools(requests_of(workload), prefill, decode, link)
    total = tallies.total
    return PlanRun(total, tuple(FleetReport(*each, total.last_end_s) for each in fleets))


def _replicas(config: PlanConfig, count: int, tallies: Tallies) -> list[Replica]:
    cost_model = WorkloadCost.of(config).cost_model
    limits = {
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": config.max_model_len,
        "num_blocks": memory_table(config).num_blocks,
        "block_size": config.block_size,
    }

    def replica() -> Replica:
        policy = None if config.chunk_size is None else ChunkedPrefillPolicy(config.chunk_size)
        return Replica(make_scheduler(limits, policy, enable_prefix_caching=True), cost_model, tallies.new())

    return [replica() for _ in range(count)]
