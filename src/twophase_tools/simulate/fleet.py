"""Many engines behind a router. They may be of different hardware, and with a `Scaler` they come and go."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

from twophase.core.errors import ConfigError
from twophase.core.request import Request, RequestOutput
from twophase_tools.simulate.autoscale import FleetState, Scaler
from twophase_tools.simulate.routers import Router
from twophase_tools.simulate.simulator import Replica, in_order


@dataclass(slots=True)
class Life:
    """An engine's time in a fleet. Only the `Fleet` changes it.

    Attributes:
        start_s: When it was started; paid for from here on.
        ready_s: When it could take requests.
        end_s: When it had left; None: it never did.
    """

    replica: Replica
    start_s: float
    ready_s: float
    end_s: float | None = None


AfterEnd = Callable[[Replica, RequestOutput], None]


@final
class Fleet:
    """Serves requests in the order of their arrivals; the replicas' recorders keep what becomes of them.

    An engine that is to leave drains: it gets no more requests, and goes when it has ended those it has.

    Args:
        replicas: Those that are there from the beginning.
        scaler: Lets engines come and go; None: those above stay.

    Attributes:
        lives: Of all engines that there ever were, in the order in which they were started.
        states: What the scaler saw, and how many engines it then wanted.

    Raises:
        ConfigError: There is no replica, or not as many as the scaler allows.
    """

    def __init__(self, replicas: Sequence[Replica], router: Router, scaler: Scaler | None = None) -> None:
        if not replicas:
            raise ConfigError("a fleet needs at least 1 replica.")
        if scaler is not None and not scaler.least <= len(replicas) <= scaler.most:
            raise ConfigError(f"a fleet of {scaler.least} to {scaler.most} engines cannot begin with {len(replicas)}.")
        self._router = router
        self._scaler = scaler
        self._next_look_s = math.inf if scaler is None else scaler.period_s
        self._looked_s = 0.0
        self._after_end: AfterEnd | None = None
        self._busy_s: dict[Replica, float] = {}  # as of the latest look
        self.lives = [Life(replica, 0.0, 0.0) for replica in replicas]
        self._ready = list(self.lives)
        self._starting: list[Life] = []
        self._draining: list[Life] = []
        self.states: list[tuple[FleetState, int]] = []

    def hand_over(self, after_end: AfterEnd) -> None:
        """Call this at each request's end, with the engine that served it."""
        self._after_end = after_end
        for life in self.lives:
            life.replica.after_end = partial(after_end, life.replica)

    def serve(self, request: Request, prefilled: RequestOutput | None = None) -> None:
        """A request arrives; see `Replica.submit`.

        Raises:
            ConfigError: The router chose an engine that does not exist.
            InvalidRequestError, SimulationStuckError: As `simulate`.
        """
        self._look_until(request.arrival_s)
        replicas = [life.replica for life in self._ready]
        if self._router.looks_at_replicas:
            for replica in replicas:
                replica.run_until(request.arrival_s)
        chosen = self._router.choose(replicas, request)
        if not 0 <= chosen < len(replicas):
            name = type(self._router).__name__
            raise ConfigError(f"{name} chose replica {chosen} of {len(replicas)}, counted from 0.")
        replicas[chosen].run_until(request.arrival_s)
        replicas[chosen].submit(request, prefilled)

    def run_until(self, time_s: float | int) -> None:
        """Do every step that starts before `time_s`, a finite time, and let engines come and go."""
        self._look_until(time_s)
        for life in (*self._ready, *self._draining):
            life.replica.run_until(time_s)

    def finish(self) -> None:
        """No request comes any more: serve those that are there."""
        while self._scaler is not None and self._has_unfinished():
            self._look_until(self._next_look_s)
        for life in (*self._ready, *self._draining):
            life.replica.run_until(math.inf)

    def engine_s(self, end_s: float | int) -> float:
        """Seconds of all engines together, start-up included, until each left or `end_s`."""
        return float(sum((end_s if life.end_s is None else life.end_s) - life.start_s for life in self.lives))

    # -- coming and going

    def _has_unfinished(self) -> bool:
        return any(life.replica.num_outstanding(self._looked_s) for life in (*self._ready, *self._draining))

    def _look_until(self, time_s: float | int) -> None:
        while self._next_look_s <= time_s:
            self._look(self._next_look_s)
        self._open(time_s)

    def _open(self, time_s: float | int) -> None:
        """Engines that have started by now take requests."""
        self._ready += [life for life in self._starting if life.ready_s <= time_s]
        self._starting = [life for life in self._starting if life.ready_s > time_s]

    def _look(self, time_s: float) -> None:
        assert self._scaler is not None
        self._open(time_s)
        for life in (*self._ready, *self._draining):
            life.replica.run_until(time_s)
        for life in [life for life in self._draining if not life.replica.num_outstanding(time_s)]:
            life.end_s = time_s
            self._draining.remove(life)
        state = self._state(time_s)
        wanted = self._scaler.num_wanted(state)
        self.states.append((state, wanted))
        self._change(wanted - len(self._ready) - len(self._starting), time_s)
        self._looked_s, self._next_look_s = time_s, time_s + self._scaler.period_s

    def _state(self, time_s: float) -> FleetState:
        replicas = [life.replica for life in self._ready]
        busy_s = {replica: replica.busy_s(time_s) for replica in replicas}
        span_s = (time_s - self._looked_s) * len(replicas)
        state = FleetState(
            time_s=time_s,
            num_ready=len(self._ready),
            num_starting=len(self._starting),
            num_draining=len(self._draining),
            num_outstanding=sum(replica.num_outstanding(time_s) for replica in replicas),
            num_tokens=sum(replica.num_outstanding_tokens(time_s) for replica in replicas),
            capacity_tokens=sum(replica.capacity_tokens for replica in replicas),
            busy_share=sum(busy_s[replica] - self._busy_s.get(replica, 0.0) for replica in replicas) / span_s,
            queue_age_s=max(replica.queue_age_s(time_s) for replica in replicas),
        )
        self._busy_s = busy_s
        return state

    def _change(self, difference: int, time_s: float) -> None:
        """So many engines more or fewer. One that drains is taken back before a new one is started, and one that has
        not started yet is given up before one that works has to drain: then it is the one with the fewest tokens."""
        assert self._scaler is not None
        for _ in range(difference):
            if self._draining:
                self._ready.append(self._draining.pop())
            else:
                self._start(time_s)
        for _ in range(-difference):
            if self._starting:
                self._starting.pop().end_s = time_s
            else:
                idlest = min(self._ready, key=lambda life: life.replica.num_outstanding_tokens(time_s))
                self._ready.remove(idlest)
                self._draining.append(idlest)

    def _start(self, time_s: float) -> None:
        assert self._scaler is not None
        life = Life(self._scaler.make_replica(), time_s, time_s + self._scaler.startup_s)
        if self._after_end is not None:
            life.replica.after_end = partial(self._after_end, life.replica)
        self.lives.append(life)
        self._starting.append(life)


def run_fleet(
    requests: Iterable[Request], replicas: Sequence[Replica], router: Router, scaler: Scaler | None = None
) -> Fleet:
    """Serve `requests`, in the order of their arrivals; the replicas' recorders keep what becomes of them.

    Requests are taken from the iterable one at a time: memory holds the unfinished ones only.

    Raises:
        ConfigError: There is no replica, or the router chose one that does not exist.
        InvalidRequestError, SimulationStuckError: As `simulate`.
    """
    fleet = Fleet(replicas, router, scaler)
    for request in in_order(requests):
        fleet.serve(request)
    fleet.finish()
    return fleet
