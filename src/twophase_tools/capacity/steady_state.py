"""Many requests at once: as many end as arrive, and Little's law counts those in between.

The unknown is k, the requests that arrive and end per step. Each needs O - 1 decodes and P prompt tokens, so that a
step has k (O - 1) decodes and k P prompt tokens, and a request is in the engine for its n chunks and O - 1 decodes:

    requests at once = k (n + O - 1)            Little's law (Operations Research 9(3), 1961), time in steps
    mean step time   = (1 - f) T(decodes) + f T(decodes + k / f prompts),   f = min(1, k n) the share of steps that
                       have a prefill, T the roofline
    requests per s   = k / mean step time

An average over steps, not over loads: a step is bound by memory without a prefill and by arithmetic with one.

The first token waits for the rest of the step that its request arrives in, then for its prompt, with those that arrived
in the same step. Steps with prompts are a gated queue: C = plain + c M, where c is what a prompt adds and M, Poisson of
mean rate * C, counts the arrivals of the step before, so var C = rate c^2 E[C] / (1 - (rate c)^2). An arrival meets
long steps more often, of length E[C^2] / E[C] = E[C] + var C / E[C] on average, and finds somebody there with
probability 1 - e^-N, N being the requests at once (M/G/infinity):

    TTFT = met / 2 + rate * met * c + own prefill,      met = (1 - e^-N) E[C] + rate c^2 / (1 - (rate c)^2)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from twophase_tools.capacity.workload_cost import Prefill, WorkloadCost
from twophase_tools.load.slo import Slo

BISECTIONS = 80  # halve a bracket to the last bit of a float


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Averages while the load does not change.

    Attributes:
        requests_per_s: That arrive and end.
        num_requests: In the engine at once.
        num_decodes: In a step.
        ttft_s: Arrival to first token.
        tpot_s: Between two tokens of a request; None: it has one token only.
    """

    requests_per_s: float
    num_requests: float
    num_decodes: float
    ttft_s: float
    tpot_s: float | None

    def keeps(self, slo: Slo) -> bool:
        return slo.is_met(self.ttft_s, self.tpot_s)


@final
@dataclass(frozen=True, slots=True)
class Server:
    """An engine that serves nothing but mean requests.

    Attributes:
        step_tokens: In a step at most.
        max_requests: At once at most: `max_num_seqs`, or what the memory holds.
    """

    cost: WorkloadCost
    step_tokens: int
    max_requests: int

    def alone(self) -> SteadyState:
        """A request in an empty engine."""
        prefill_s = self.cost.prefill_s(self.cost.prefill(self.step_tokens), 0)
        num_decodes = self.cost.num_decodes
        tpot_s = self.cost.step_s(1) if num_decodes else None
        return SteadyState(1 / (prefill_s + num_decodes * (tpot_s or 0.0)), 1.0, 1.0, prefill_s, tpot_s)

    def saturated(self) -> SteadyState:
        """As many requests as the engine takes."""
        most = self.most_per_step()
        return self._at(most, most)

    def at_rate(self, requests_per_s: float | int) -> SteadyState | None:
        """At this rate; None where the engine cannot keep up."""
        most = self.most_per_step()
        if self._at(most, most).requests_per_s < requests_per_s:
            return None
        k = largest(lambda k: self._at(k, most).requests_per_s <= requests_per_s, most)
        # A step's time jumps where a prompt needs one chunk more; the rate asked for is the one to be told.
        state = self._at(k or most / 2**BISECTIONS, most)
        return replace(state, requests_per_s=float(requests_per_s))

    def within(self, slo: Slo) -> SteadyState | None:
        """The highest load that keeps the promise; None: not even the lowest does."""
        most = self.most_per_step()
        k = largest(lambda k: self._at(k, most).keeps(slo), most)
        return self._at(k, most) if k else None

    def most_per_step(self) -> float:
        """The largest k: within the tokens of a step and the requests at once."""
        workload, num_decodes = self.cost.workload, self.cost.num_decodes
        by_tokens = self.step_tokens / (workload.prompt_tokens + num_decodes)
        return largest(lambda k: k * (self._num_chunks(k) + num_decodes) <= self.max_requests, by_tokens)

    def _room(self, k: float) -> int:
        """Tokens of a step left for prompts."""
        return max(1, int(self.step_tokens - k * self.cost.num_decodes))

    def _num_chunks(self, k: float) -> int:
        return -(-self.cost.workload.prompt_tokens // self._room(k))

    def _at(self, k: float, most: float) -> SteadyState:
        num_decodes = k * self.cost.num_decodes
        prefill = self.cost.prefill(self._room(k))
        # Someone who decodes finds the others and himself (Poisson arrivals see averages), the full house excepted.
        seen = min(num_decodes + 1, max(1.0, most * self.cost.num_decodes)) if self.cost.num_decodes else 0.0
        plain_s, mixed_s, share = self._two_steps(k, prefill, seen)
        step_s = (1 - share) * plain_s + share * mixed_s
        num_requests = k * (prefill.num_chunks + self.cost.num_decodes)
        # A prompt makes its step longer, and more prompts arrive during a longer step, which makes the next one longer.
        prompt_s, rate = (mixed_s - plain_s) * share / k, k / step_s
        # 1 - rate * prompt is plain / step; the difference itself is lost to rounding where prompts are all there is.
        spread_s = rate * prompt_s**2 / (plain_s / step_s * (1 + rate * prompt_s))
        met_s = -math.expm1(-num_requests) * step_s + spread_s
        return SteadyState(
            requests_per_s=rate,
            num_requests=num_requests,
            num_decodes=num_decodes,
            ttft_s=met_s / 2 + rate * met_s * prompt_s + self.cost.prefill_s(prefill, num_decodes),
            tpot_s=step_s if self.cost.num_decodes else None,
        )

    def _two_steps(self, k: float, prefill: Prefill, num_decodes: float) -> tuple[float, float, float]:
        """Seconds of a step without and with a prefill, and the share of the latter."""
        share = min(1.0, k * prefill.num_chunks)
        mixed_s = self.cost.step_s(num_decodes, prefill.total, weight=k / share)
        return self.cost.step_s(num_decodes), mixed_s, share


def largest(is_fine: Callable[[float], bool], most: float) -> float:
    """The largest number in [0, most] up to which all is fine, by bisection; 0 where nothing is."""
    if is_fine(most):
        return most
    low, high = 0.0, most
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_fine(middle) else (low, middle)
    return low
