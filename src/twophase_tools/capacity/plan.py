"""A deployment on paper: memory, requests at once, times."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

from twophase_tools.capacity.config import PlanConfig
from twophase_tools.capacity.memory import Fit, MemoryTable, fit, memory_table
from twophase_tools.capacity.steady_state import Server, SteadyState
from twophase_tools.capacity.workload_cost import WorkloadCost

if TYPE_CHECKING:
    from twophase_tools.capacity.pools import PoolsPlan


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

    @property
    def ridge_batch(self) -> float | None:
        return self.cost.ridge_batch

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
        from twophase_tools.capacity.pools import PoolsPlan

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
