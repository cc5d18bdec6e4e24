"""Workloads as requests for a scheduler, made one at a time: a day of them takes no memory."""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

from twophase.core.errors import ConfigError
from twophase.core.request import Request, SamplingParams
from twophase_tools.load.arrivals import Arrivals, Poisson
from twophase_tools.load.checks import require_positive
from twophase_tools.load.workloads import TimedRequest

DAY_S = 86_400


def requests_of(workload: Iterable[TimedRequest]) -> Iterator[Request]:
    """What a scheduler is asked. A prompt that is not given is one made-up token, repeated; a shared prefix another:
    prompts share what they should and nothing else, and are made quickly."""
    params: dict[int, SamplingParams] = {}  # checked once for each length
    prefixes: dict[str, int] = {}
    for number, timed in enumerate(workload):
        num_output_tokens = timed.num_output_tokens
        if num_output_tokens not in params:
            params[num_output_tokens] = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
        prompt = timed.prompt_token_ids
        if prompt is None:
            shared = 2 * prefixes.setdefault(timed.prefix, len(prefixes)) + 1
            num_own = timed.num_prompt_tokens - timed.num_prefix_tokens
            prompt = (shared,) * timed.num_prefix_tokens + (2 * number,) * num_own
        yield Request(timed.request_id, prompt, params[num_output_tokens], arrival_s=timed.arrival_s)


@final
@dataclass(frozen=True, slots=True)
class Diurnal(Arrivals):
    """Poisson arrivals whose rate follows the sun: mean * (1 + swing * cos(2 pi (t - peak) / day)).

    Made by thinning (Lewis and Shedler, Naval Research Logistics 26(3), 1979): arrivals at the highest rate, each kept
    with probability rate / highest rate.

    Attributes:
        mean_per_s: Requests per second, averaged over the day.
        swing: How far the rate rises and falls, as a share of the mean, in [0, 1].
        peak_s: When it is highest, in seconds after midnight, when the workload starts.
    """

    mean_per_s: float | int
    swing: float | int = 0.6
    peak_s: float | int = 15 * 3600

    def __post_init__(self) -> None:
        require_positive("the mean arrival rate", self.mean_per_s, "requests per second")
        if not 0 <= self.swing <= 1:
            raise ConfigError(f"the swing is a share of the mean rate, in [0, 1], got {self.swing}.")

    def rate_per_s(self, time_s: float | int) -> float:
        return self.mean_per_s * (1 + self.swing * math.cos(2 * math.pi * (time_s - self.peak_s) / DAY_S))

    def times_s(self, rng: random.Random) -> Iterator[float]:
        highest_per_s = self.mean_per_s * (1 + self.swing)
        for time_s in Poisson(highest_per_s).times_s(rng):
            if rng.random() * highest_per_s < self.rate_per_s(time_s):
                yield time_s
