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

    @property
    def kv_share(self) -> float:
        """Tokens of unfinished requests per K/V slot; above 1 when more wait than fit."""
        return self.num_tokens / self.capacity_tokens

    @property
    def requests_per_engine(self) -> float:
        return self.num_outstanding / self.num_ready


class ScalingPolicy(abc.ABC):
    """Says how many engines there should be. Subclass it to write your own."""

    @abc.abstractmethod
    def num_wanted(self, state: FleetState) -> int:
        """Engines in all, those that are starting included, those that drain not."""


METRICS: dict[str, Callable[[FleetState], float]] = {
    "kv": lambda state: state.kv_share,
    "requests": lambda state: state.requests_per_engine,
    "busy": lambda state: state.busy_share,
}


@final
@dataclass(frozen=True, slots=True)
class TargetUtilisation(ScalingPolicy):
    """As many engines as bring a metric to its target, if it is proportional to load per engine:
    ceil(engines * metric / target), the rule of Kubernetes' HorizontalPodAutoscaler.

    Attributes:
        target: Of the metric, above 0.
        metric: 'kv' (tokens of unfinished requests per K/V slot), 'requests' (unfinished ones per engine) or 'busy'
            (share of the time in steps).
        tolerance: Nothing changes while metric / target is so near to 1.
    """

    target: float | int
    metric: str = "kv"
    tolerance: float | int = 0.1

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ConfigError(f"a metric to scale by is one of {', '.join(METRICS)}, got {self.metric!r}.")
        if not 0 < self.target < math.inf:
            raise ConfigError(f"the target of {self.metric!r} must be a number above 0, got {self.target}.")
        if not 0 <= self.tolerance < 1:
            raise ConfigError(f"the tolerance is a share of the target, in [0, 1), got {self.tolerance}.")

    def num_wanted(self, state: FleetState) -> int:
        ratio = METRICS[self.metric](state) / self.target
        if abs(ratio - 1) <= self.tolerance:
            return state.num_ready + state.num_starting
        return math.ceil(state.num_ready * ratio)


@final
@dataclass(frozen=True, slots=True)
class QueueAge(ScalingPolicy):
    """One engine more when requests wait too long, unless one is starting; one fewer when nobody waits and the others
    would still have room.

    Attributes:
        most_s: How long the oldest may wait, above 0.
        room: With one engine fewer, `FleetState.kv_share` must stay below this, in (0, 1].
    """

    most_s: float | int
    room: float | int = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.most_s < math.inf:
            raise ConfigError(f"a request may wait for a number of seconds above 0, got {self.most_s}.")
        if not 0 < self.room <= 1:
            raise ConfigError(f"room is a share of the K/V slots, in (0, 1], got {self.room}.")

    def num_wanted(self, state: FleetState) -> int:
        num_engines = state.num_ready + state.num_starting
        if state.queue_age_s > self.most_s:
            return num_engines if state.num_starting else num_engines + 1
        is_quiet = state.queue_age_s == 0 and state.num_ready > 1
        if is_quiet and state.kv_share * state.num_ready / (state.num_ready - 1) < self.room:
            return num_engines - 1
        return num_engines


@final
class Scaler:
    """Carries out a policy, within limits.

    Args:
        make_replica: A fresh engine, with an observer.
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


def policy_named(text: str) -> ScalingPolicy:
    """'kv=0.6', 'requests=20', 'busy=0.7' (see `TargetUtilisation`) or 'queue-age=0.5' (seconds; see `QueueAge`).

    Raises:
        ConfigError: No such rule, or a target that is not allowed.
    """
    name, _, number = text.partition("=")
    if name not in (*METRICS, "queue-age"):
        rules = ", ".join(f"{each}=N" for each in METRICS)
        raise ConfigError(f"engines are scaled by {rules} or queue-age=SECONDS, got {text!r}.")
    try:
        target = float(number)
    except ValueError:
        raise ConfigError(f"the target of {name!r} must be a number, got {number!r}.") from None
    return QueueAge(target) if name == "queue-age" else TargetUtilisation(target, name)
