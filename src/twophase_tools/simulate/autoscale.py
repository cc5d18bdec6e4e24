"""How many engines a fleet should have: looked at from time to time, decided by a policy, carried out with a delay.

The frame is that of Kubernetes' HorizontalPodAutoscaler: a look every 15 seconds, and fewer engines only when the
recommendations of the last 5 minutes all say so. An engine that starts is paid for and serves nobody until its weights
are loaded.
"""

import abc
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from twophase.core.errors import ConfigError
from twophase_tools.simulate.simulator import Replica


@dataclass(frozen=True, slots=True)
class FleetState:
    """What a scaling policy sees; sums are over the engines that take requests.

    Attributes:
        num_outstanding, num_tokens: Unfinished requests, waiting ones included, and their tokens so far.
        capacity_tokens: Slots of the K/V pools.
        busy_share: Of the time since the last look, spent in steps. One running sequence keeps an engine busy all the
            time, so this says little about how much room is left.
        queue_age_s: How long the oldest request that no step has taken up has waited.
    """

    time_s: float
    num_ready: int
    num_starting: int
    num_draining: int
    num_outstanding: int
    num_tokens: int
    capacity_tokens: int
    busy_share: float
    queue_age_s: float


class ScalingPolicy(abc.ABC):
    """Says how many engines there should be. Subclass it to write your own."""

    @abc.abstractmethod
    def num_wanted(self, state: FleetState) -> int:
        """Engines in all, those that are starting included, those that drain not."""


@final
class Scaler:
    """Carries out a policy, within limits.

    Args:
        make_replica: A fresh engine, with a recorder.
        least, most: Engines, at least 1.
        startup_s: From the order for an engine to its first request.
        period_s: Between two looks.
        down_after_s: Fewer engines than now only if the policy wanted fewer for so long; then as many as the largest
            number that it wanted in that time.

    Raises:
        ConfigError: A limit that makes no sense.
    """

    def __init__(
        self,
        policy: ScalingPolicy,
        make_replica: Callable[[], Replica],
        *,
        least: int = 1,
        most: int,
        startup_s: float | int = 60.0,
        period_s: float | int = 15.0,
        down_after_s: float | int = 300.0,
    ) -> None:
        if not 1 <= least <= most:
            raise ConfigError(f"a fleet has from least to most engines, 1 <= least <= most, got {least} to {most}.")
        for name, value in (("startup_s", startup_s), ("down_after_s", down_after_s)):
            if not 0 <= value < math.inf:
                raise ConfigError(f"{name} must be a number of seconds of at least 0, got {value}.")
        if not 0 < period_s < math.inf:
            raise ConfigError(f"period_s must be a number of seconds above 0, got {period_s}.")
        self.policy = policy
        self.make_replica = make_replica
        self.least, self.most = least, most
        self.startup_s, self.period_s, self.down_after_s = float(startup_s), float(period_s), float(down_after_s)
        self._recent: deque[tuple[float, int]] = deque()  # (when, how many were wanted)

    def num_wanted(self, state: FleetState) -> int:
        """Engines in all, within the limits; never fewer than any recent recommendation.

        Raises:
            ConfigError: The policy wants no whole number.
        """
        wanted = self.policy.num_wanted(state)
        if not isinstance(wanted, int):
            raise ConfigError(f"{type(self.policy).__name__} must want a whole number of engines, got {wanted!r}.")
        wanted = min(max(wanted, self.least), self.most)
        while self._recent and self._recent[0][0] < state.time_s - self.down_after_s:
            self._recent.popleft()
        self._recent.append((state.time_s, wanted))
        num_engines = state.num_ready + state.num_starting
        return max(wanted, min(num_engines, max(recent for _, recent in self._recent)))
