"""Which engine gets a request: in turn, by load, by what its cache holds, by the length of the prompt.

A router sees what a front end can know: the requests, and counts that engines report. It does not know how many tokens
a request will generate. Write your own as a subclass of `Router` with a method `choose`.
"""

import abc
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import final

from twophase.cache.prefix_cache import block_digest, salt_digest, tokens_to_bytes
from twophase.core.errors import ConfigError
from twophase.core.request import Request
from twophase_tools.simulate.simulator import Replica

MOST = 1e9  # of a parameter; neither infinity nor NaN is below it


class Router(abc.ABC):
    """Sends each request to one of the engines that take requests; `request.arrival_s` is the present time.

    Attributes:
        looks_at_replicas: Whether it asks them anything; if so, all are brought up to the time of each arrival.
    """

    looks_at_replicas: bool = True

    @abc.abstractmethod
    def choose(self, replicas: Sequence[Replica], request: Request) -> int:
        """Index of the replica that gets it."""


class InTurn(Router):
    """Sends a request where it costs least; among equals, to each in turn."""

    def __init__(self) -> None:
        self._next = 0

    def _cheapest(self, costs: Sequence[int | float]) -> int:
        """Index of the least cost; among equals the first from `_next` on."""
        count, least = len(costs), min(costs)
        chosen = next(i % count for i in range(self._next, self._next + count) if costs[i % count] == least)
        self._next = chosen + 1
        return chosen


@final
class RoundRobin(InTurn):
    """Each in turn, whatever they do."""

    looks_at_replicas = False

    def choose(self, replicas: Sequence[Replica], request: Request) -> int:
        return self._cheapest([0] * len(replicas))


@final
class LeastOutstanding(InTurn):
    """Whoever has the fewest unfinished requests."""

    def choose(self, replicas: Sequence[Replica], request: Request) -> int:
        return self._cheapest([replica.num_outstanding(request.arrival_s) for replica in replicas])


@final
class LeastTokens(InTurn):
    """Whoever has the fewest tokens in unfinished requests, queued or running.

    A prompt of 8,000 tokens is no more than one request to `LeastOutstanding`.
    """

    def choose(self, replicas: Sequence[Replica], request: Request) -> int:
        return self._cheapest([replica.num_outstanding_tokens(request.arrival_s) for replica in replicas])


@final
class PrefixAware(InTurn):
    """The engine for which hits and load together cost least, in tokens:

        cost = weight * (tokens of the prompt that it would have to compute) + tokens of its unfinished requests

    This is the cost of NVIDIA Dynamo's KV router (in blocks there: `overlap_score_weight * prefill_blocks +
    decode_blocks`). Weight 0 is `LeastTokens`; a large one follows the prefix whatever the load.

    What an engine holds is guessed, as SGLang's router does without events from its workers: every full block that was
    sent to an engine is taken to be there, until `index_share` of its slots would be exceeded; then the blocks
    used longest ago are forgotten. So the guess errs where the engine evicts in another order.

    Args:
        weight: Of a token to be computed against one that is loaded, at least 0.
        block_size: Tokens that are hit together.
        index_share: Of an engine's K/V slots, in (0, 1].
    """

    def __init__(self, weight: int | float = 1.0, block_size: int | float = 16, index_share: int | float = 1.0) -> None:
        if not 0 <= weight <= MOST:
            raise ConfigError(f"the weight of a hit must be a number from 0 to {MOST:g}, got {weight}.")
        if block_size < 1 or int(block_size) != block_size:
            raise ConfigError(f"block_size must be a whole number of at least 1 token, got {block_size}.")
        if not 0 < index_share <= 1:
            raise ConfigError(f"index_share is a share of an engine's K/V slots, in (0, 1], got {index_share}.")
        super().__init__()
        self._weight = weight
        self._block_size = int(block_size)
        self._index_share = index_share
        self._sent: dict[Replica, OrderedDict[bytes, None]] = {}  # digests of blocks, the latest used last

    def choose(self, replicas: Sequence[Replica], request: Request) -> int:
        digests = self._digests(request)
        self._sent = {replica: self._sent.get(replica, OrderedDict()) for replica in replicas}
        num_tokens = len(request.prompt_token_ids)
        costs = []
        for replica in replicas:
            num_to_compute = num_tokens - self._num_hit(replica, digests) * self._block_size
            costs.append(self._weight * num_to_compute + replica.num_outstanding_tokens(request.arrival_s))
        chosen = self._cheapest(costs)
        self._note(replicas[chosen], digests)
        return chosen

    def _digests(self, request: Request) -> list[bytes]:
        """Of each full block and all before it, as in an engine's prefix cache; the last token is always computed."""
        digest, digests = salt_digest(request.cache_salt), []
        prompt, size = request.prompt_token_ids, self._block_size
        for end in range(size, len(prompt), size):
            digest = block_digest(digest, tokens_to_bytes(prompt[end - size : end]))
            digests.append(digest)
        return digests

    def _num_hit(self, replica: Replica, digests: Sequence[bytes]) -> int:
        sent = self._sent[replica]
        return next((i for i, digest in enumerate(digests) if digest not in sent), len(digests))

    def _note(self, replica: Replica, digests: Sequence[bytes]) -> None:
        sent = self._sent[replica]
        for digest in reversed(digests):  # a block outlives those that continue it
            sent[digest] = None
            sent.move_to_end(digest)
        while len(sent) > self._index_share * replica.capacity_tokens / self._block_size:
            sent.popitem(last=False)


@final
class ByLength(Router):
    """Long prompts to engines of their own, so that short ones never wait behind them.

    Args:
        limit_tokens: A prompt of more is long.
        num_long: The last so many engines take the long ones, at least 1; the others the short ones.
        router: Makes the router of each side; None: `LeastTokens`.
    """

    def __init__(
        self,
        limit_tokens: int | float = 4096,
        num_long: int | float = 1,
        router: Callable[[], Router] | None = None,
    ) -> None:
        if num_long < 1 or int(num_long) != num_long:
            raise ConfigError(f"num_long must be a whole number of engines, at least 1, got {num_long}.")
        if not limit_tokens >= 0:
            raise ConfigError(f"limit_tokens must be a number of at least 0, got {limit_tokens}.")
        self._limit_tokens = limit_tokens
        self._num_long = int(num_long)
        make = LeastTokens if router is None else router
        self._short, self._long = make(), make()

    def choose(self, replicas: Sequence[Replica], request: Request) -> int:
        num_short = len(replicas) - self._num_long
        if num_short < 1:
            raise ConfigError(
                f"{self._num_long} engines for long prompts leave none of {len(replicas)} for the short ones; lower "
                f"num_long, or add engines."
            )
        if len(request.prompt_token_ids) > self._limit_tokens:
            return num_short + self._long.choose(replicas[num_short:], request)
        return self._short.choose(replicas[:num_short], request)


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-outstanding": LeastOutstanding,
    "least-tokens": LeastTokens,
    "prefix": PrefixAware,
    "length": ByLength,
}


def router_named(name: str) -> Router:
    """A fresh router with its defaults. Raises ConfigError for a name that is not in the table."""
    if name not in ROUTERS:
        raise ConfigError(f"the routers are {', '.join(ROUTERS)}, got {name!r}.")
    return ROUTERS[name]()
