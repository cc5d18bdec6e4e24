"""Many engines behind a router."""

import abc
import math
from collections.abc import Iterable, Sequence
from typing import final

from twophase.core.errors import ConfigError
from twophase.core.request import Request
from twophase_tools.simulate.simulator import Replica, in_order


class Router(abc.ABC):
    """Sends each request to a replica. Implementations are final.

    Attributes:
        looks_at_replicas: Whether it asks them anything; if so, all are brought up to the time of each arrival.
    """

    looks_at_replicas: bool

    @abc.abstractmethod
    def choose(self, replicas: Sequence[Replica], request: Request) -> int:
        """Index of the replica that gets it."""


@final
class RoundRobin(Router):
    """Each in turn, whatever they do."""

    looks_at_replicas = False

    def __init__(self) -> None:
        self._next = 0

    def choose(self, replicas: Sequence[Replica], request: Request) -> int:
        chosen = self._next % len(replicas)
        self._next = chosen + 1
        return chosen


@final
class LeastOutstanding(Router):
    """Whoever has the fewest unfinished requests; among equals, each in turn."""

    looks_at_replicas = True

    def __init__(self) -> None:
        self._next = 0

    def choose(self, replicas: Sequence[Replica], request: Request) -> int:
        count = len(replicas)
        outstanding = [replica.num_outstanding(request.arrival_s) for replica in replicas]
        fewest = min(outstanding)
        chosen = next(i % count for i in range(self._next, self._next + count) if outstanding[i % count] == fewest)
        self._next = chosen + 1
        return chosen


ROUTERS: dict[str, type[Router]] = {"round-robin": RoundRobin, "least-outstanding": LeastOutstanding}


def router_named(name: str) -> Router:
    """A fresh router; raises ConfigError for a name that is not in the table."""
    if name not in ROUTERS:
        raise ConfigError(f"the routers are {', '.join(ROUTERS)}, got {name!r}.")
    return ROUTERS[name]()


def run_fleet(requests: Iterable[Request], replicas: Sequence[Replica], router: Router) -> None:
    """Serve `requests`, in the order of their arrivals; the replicas' observers keep what becomes of them.

    Requests are taken from the iterable one at a time: memory holds the unfinished ones only.

    Raises:
        ConfigError: There is no replica, or the router chose one that does not exist.
        InvalidRequestError, SimulationStuckError: As `simulate`.
    """
    if not replicas:
        raise ConfigError("a fleet needs at least 1 replica.")
    for request in in_order(requests):
        if router.looks_at_replicas:
            for replica in replicas:
                replica.run_until(request.arrival_s)
        chosen = router.choose(replicas, request)
        if not 0 <= chosen < len(replicas):
            raise ConfigError(f"{type(router).__name__} chose replica {chosen} of {len(replicas)}, counted from 0.")
        replica = replicas[chosen]
        replica.run_until(request.arrival_s)
        replica.submit(request)
    for replica in replicas:
        replica.run_until(math.inf)
