"""Many engines behind a router. They may be of different hardware."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import final

from twophase.core.errors import ConfigError
from twophase.core.request import Request, RequestOutput
from twophase_tools.simulate.routers import Router
from twophase_tools.simulate.simulator import Replica, in_order


@final
class Fleet:
    """Serves requests in the order of their arrivals; the replicas keep what becomes of them.

    Raises:
        ConfigError: There is no replica.
    """

    def __init__(self, replicas: Sequence[Replica], router: Router) -> None:
        if not replicas:
            raise ConfigError("a fleet needs at least 1 replica.")
        self.replicas = tuple(replicas)
        self._router = router

    def hand_over(self, after_end: Callable[[Replica, RequestOutput], None]) -> None:
        """Call this at each request's end, with the engine that served it."""
        for replica in self.replicas:
            replica.after_end = partial(after_end, replica)

    def serve(self, request: Request, prefilled: RequestOutput | None = None) -> None:
        """A request arrives; see `Replica.submit`.

        Raises:
            ConfigError: The router chose an engine that does not exist.
            InvalidRequestError, SimulationStuckError: As `simulate`.
        """
        if self._router.looks_at_replicas:
            self.run_until(request.arrival_s)
        chosen = self._router.choose(self.replicas, request)
        if not 0 <= chosen < len(self.replicas):
            name = type(self._router).__name__
            raise ConfigError(f"{name} chose replica {chosen} of {len(self.replicas)}, counted from 0.")
        self.replicas[chosen].run_until(request.arrival_s)
        self.replicas[chosen].submit(request, prefilled)

    def run_until(self, time_s: float | int) -> None:
        """Do every step that starts before `time_s`."""
        for replica in self.replicas:
            replica.run_until(time_s)

    def finish(self) -> None:
        """No request comes any more: serve those that are there."""
        self.run_until(math.inf)


def run_fleet(requests: Iterable[Request], replicas: Sequence[Replica], router: Router) -> Fleet:
    """Serve `requests`, in the order of their arrivals; the replicas keep what becomes of them.

    Requests are taken from the iterable one at a time: memory holds the unfinished ones only.

    Raises:
        ConfigError: There is no replica, or the router chose one that does not exist.
        InvalidRequestError, SimulationStuckError: As `simulate`.
    """
    fleet = Fleet(replicas, router)
    for request in in_order(requests):
        fleet.serve(request)
    fleet.finish()
    return fleet
