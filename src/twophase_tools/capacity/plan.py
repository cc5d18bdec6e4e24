"""A deployment on paper: memory, requests at once, times; and prefill and decode on engines of their own.

Of pools: an engine of the prefill pool serves requests of one output token, so the steady state of a mixed engine holds
for it. One of the decode pool has n sequences at once and steps of nothing else; by Little's law (Operations Research
9(3), 1961), with D decodes a request,

    requests per s = n / (D * step time with n decodes)

A request that finds n there decodes with n + 1. Its first token is handed out when its K and V have arrived and the
step under way, half of one on average, is over.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from twophase_tools.capacity.config import PlanConfig, PoolsConfig
from twophase_tools.capacity.memory import Fit, MemoryTable, fit, memory_table
from twophase_tools.capacity.steady_state import Server, SteadyState, largest
from twophase_tools.capacity.workload_cost import WorkloadCost

CROWDED = 0.8  # utilisation from which on queues grow long: in the simplest one, M/D/1, a wait of two services
MOST_ENGINES = 10_000


@final
@dataclass(frozen=True)
class Plan:
    """What a config leads to. Every figure is computed when it is asked for; nothing is measured.

    The figures of a load are None where not even one mean request fits, and `at_rate` where the rate is too high.
    """

    config: PlanConfig

    @cached_property
    def memory(self) -> MemoryTable:
        return memory_table(self.config)

    @cached_property
    def at_limit(self) -> Fit:
        """Requests as long as the context limit."""
        return fit(self.config, self.memory, self.config.max_model_len)

    @cached_property
    def at_mean(self) -> Fit:
        """Requests of the workload's mean length, at their end."""
        return fit(self.config, self.memory, self.config.workload.num_tokens)

    @property
    def max_requests(self) -> int:
        """At once, of mean length: as many as max_num_seqs allows, or the memory."""
        return min(self.config.max_num_seqs, self.at_mean.num_requests)

    @cached_property
    def cost(self) -> WorkloadCost:
        return WorkloadCost.of(self.config)

    @cached_property
    def server(self) -> Server | None:
        return Server(self.cost, self.config.step_tokens, self.max_requests) if self.max_requests else None

    @cached_property
    def alone(self) -> SteadyState | None:
        return None if self.server is None else self.server.alone()

    @cached_property
    def at_rate(self) -> SteadyState | None:
        return None if self.server is None else self.server.at_rate(self.config.workload.rate)

    @cached_property
    def saturated(self) -> SteadyState | None:
        return None if self.server is None else self.server.saturated()

    @cached_property
    def within_slo(self) -> SteadyState | None:
        """The highest load within the SLO; None: there is no SLO, or no such load."""
        slo = self.config.slo
        return None if self.server is None or slo is None else self.server.within(slo)

    @cached_property
    def pools(self) -> "PoolsPlan | None":
        """Prefill and decode apart, where the config has pools."""
        return None if self.config.pools is None else PoolsPlan(self.config, self.config.pools)

    @property
    def utilisation(self) -> float | None:
        """Requests that arrive for each that the engine could serve."""
        return None if self.saturated is None else self.config.workload.rate / self.saturated.requests_per_s

    @property
    def limited_by(self) -> str | None:
        """What keeps the throughput from being higher."""
        if self.saturated is None:
            return None
        if self.saturated.num_requests < self.max_requests * (1 - 1e-6):
            is_chunk = self.config.step_tokens < self.config.max_num_batched_tokens
            return "chunk_size" if is_chunk else "max_num_batched_tokens"
        return "max_num_seqs" if self.max_requests == self.config.max_num_seqs else "memory for K/V"


@final
@dataclass(frozen=True)
class PoolsPlan:
    """What pools lead to. Every figure is computed when it is asked for; nothing is measured.

    Figures are None where not even one request fits on an engine, or no number of engines would do.
    """

    config: PlanConfig
    pools: PoolsConfig

    @cached_property
    def prefill(self) -> Plan:
        """One engine of the prefill pool, whose requests are one token long."""
        workload = replace(self.config.workload, output_tokens=1)
        return Plan(replace(self.config.of_pool(self.pools.prefill), workload=workload))

    @cached_property
    def decode(self) -> Plan:
        return Plan(self.config.of_pool(self.pools.decode))

    @property
    def transfer_s(self) -> float:
        """K and V of a mean prompt."""
        num_bytes = self.config.workload.prompt_tokens * self.config.shape.kv_bytes_per_token
        return self.pools.link_latency_s + num_bytes / self.pools.link_bytes_per_s

    # -- one engine of each

    @cached_property
    def prefills_per_s(self) -> float | None:
        """Prompts that an engine of the prefill pool can compute and send."""
        most = self.prefill.saturated
        return None if most is None else min(most.requests_per_s, 1 / self._sending_s)

    @cached_property
    def decodes_per_s(self) -> float | None:
        """Requests that an engine of the decode pool can end; infinite where they are one token long."""
        if not self.decode.max_requests:
            return None
        return self._decode_rate(self.decode.max_requests)

    @property
    def _sending_s(self) -> float:
        """For which a prompt keeps its engine's link busy; latencies overlap."""
        return self.transfer_s - self.pools.link_latency_s

    def _decode_rate(self, num_sequences: int | float) -> float:
        cost = self.decode.cost
        if not cost.num_decodes:
            return math.inf
        return num_sequences / (cost.num_decodes * cost.step_s(num_sequences))

    def _decode_step_s(self, requests_per_s: int | float) -> float | None:
        """Of the steps that a request meets on an engine at this rate; None: the engine cannot keep up."""
        most = self.decode.max_requests
        if not most or self._decode_rate(most) < requests_per_s:
            return None
        num_sequences = largest(lambda n: self._decode_rate(n) <= requests_per_s, float(most))
        return self.decode.cost.step_s(min(num_sequences + 1, most))

    # -- how many, and what requests get

    @cached_property
    def num_decode(self) -> int | None:
        """Engines of the decode pool: as given, or the fewest that are not crowded and keep the TPOT promised."""
        if self.pools.decode.engines is not None:
            return self.pools.decode.engines
        tpot_s = None if self.config.slo is None else self.config.slo.tpot_s
        return _fewest(lambda n: self._is_enough(self.decodes_per_s, n) and _within(self.tpot_with(n), tpot_s))

    @cached_property
    def num_prefill(self) -> int | None:
        """Engines of the prefill pool: as given, or the fewest that are not crowded and keep the TTFT promised."""
        if self.pools.prefill.engines is not None:
            return self.pools.prefill.engines
        ttft_s = None if self.config.slo is None else self.config.slo.ttft_s
        return _fewest(lambda n: self._is_enough(self.prefills_per_s, n) and _within(self.ttft_with(n), ttft_s))

    def _is_enough(self, each_per_s: float | None, num_engines: int) -> bool:
        return each_per_s is not None and self.config.workload.rate <= CROWDED * num_engines * each_per_s

    def tpot_with(self, num_decode: int) -> float | None:
        """Mean seconds between tokens; None: the pool cannot keep up."""
        return self._decode_step_s(self.config.workload.rate / num_decode)

    def ttft_with(self, num_prefill: int) -> float | None:
        """Mean seconds to the first token; None: one of the pools cannot keep up."""
        server = self.prefill.server
        state: SteadyState | None = None
        if server is not None and self.prefills_per_s is not None:
            rate = self.config.workload.rate / num_prefill
            state = server.at_rate(rate) if rate <= self.prefills_per_s else None
        # Where no number of decode engines keeps its promise, that is not for this pool to mend.
        step_s = self.decode.cost.step_s(1) if self.num_decode is None else self.tpot_with(self.num_decode)
        if state is None or step_s is None:
            return None
        return state.ttft_s + self.transfer_s + step_s / 2

    @property
    def ttft_s(self) -> float | None:
        return None if self.num_prefill is None else self.ttft_with(self.num_prefill)

    @property
    def tpot_s(self) -> float | None:
        return None if self.num_decode is None else self.tpot_with(self.num_decode)

    @property
    def num_gpus(self) -> int | None:
        """In both pools."""
        if self.num_prefill is None or self.num_decode is None:
            return None
        here, there = self.prefill.config, self.decode.config
        return self.num_prefill * here.tensor_parallel_size + self.num_decode * there.tensor_parallel_size

    @property
    def sides(self) -> dict[str, "Side"]:
        """The pools, by their names."""
        rate, (here, there) = self.config.workload.rate, (self.pools.prefill, self.pools.decode)
        return {
            "prefill": Side(self.prefill, rate, self.prefills_per_s, self.num_prefill, here.engines is not None),
            "decode": Side(self.decode, rate, self.decodes_per_s, self.num_decode, there.engines is not None),
        }


@dataclass(frozen=True, slots=True)
class Side:
    """One of the pools.

    Attributes:
        plan: Of one of its engines.
        rate: Requests per second for all of them.
        each_per_s: Requests that an engine can take; None: it has no room for a single one.
        num_engines: None: no number of engines would do.
        is_given: Whether the number is the file's.
    """

    plan: Plan
    rate: float | int
    each_per_s: float | None
    num_engines: int | None
    is_given: bool

    @property
    def utilisation(self) -> float | None:
        """Requests that arrive for each that so many engines could serve."""
        if self.each_per_s is None or self.num_engines is None:
            return None
        return self.rate / (self.num_engines * self.each_per_s)


def _within(value_s: float | None, limit_s: float | int | None) -> bool:
    return value_s is not None and (limit_s is None or value_s <= limit_s)


def _fewest(is_enough: Callable[[int], bool]) -> int | None:
    """The smallest number of engines that is enough, if any more of them are, too; None: not even `MOST_ENGINES`."""
    if not is_enough(MOST_ENGINES):
        return None
    low, high = 0, MOST_ENGINES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
