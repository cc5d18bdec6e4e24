"""Prefill and decode in pools of their own, of unequal hardware, with a link between them.

(DistServe, arXiv:2401.09670; Splitwise, arXiv:2311.18677.) As in `twophase_features.parallel.disaggregation`: an engine
of the prefill pool computes a prompt, its K and V travel, and an engine of the decode pool admits the request when they
have arrived and it has room for them. It computes what is not in the prompt's full blocks, and so the first token.

Simpler than the real pair: K and V leave when the whole prompt is computed, not layer by layer; all of a prompt
travels, what the other side's cache holds included; and it is sent into GPU memory, of which there is enough, so that
a full decode pool does not hold up the prefill pool.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, replace
from typing import final

from twophase.core.request import Request, RequestOutput
from twophase.core.rules import number, option, whole_number
from twophase_tools.checked import Checked
from twophase_tools.simulate.fleet import Fleet
from twophase_tools.simulate.simulator import Replica, in_order


@final
@dataclass(frozen=True)
class Link(Checked):
    """How K and V travel from an engine of the prefill pool: one prompt after the other.

    Attributes:
        bytes_per_s: That an engine can send.
        latency_s: Of a message.
        bytes_per_token: K and V in all layers.
    """

    bytes_per_s: float | int = option(MISSING, number("a finite number > 0", lambda x: x > 0))
    bytes_per_token: int = option(MISSING, whole_number(1))
    latency_s: float | int = option(0.0, number("a finite number >= 0", lambda x: x >= 0))

    def transfer_s(self, num_tokens: int) -> float:
        """From the first byte sent to the last one received."""
        return self.latency_s + num_tokens * self.bytes_per_token / self.bytes_per_s


@final
class _OnTheirWay:
    """Requests between the pools, by the time at which their K and V have arrived."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._requests: dict[str, Request] = {}  # as they were asked for
        self._free_s: dict[Replica, float] = {}  # when an engine's link is
        self._heap: list[tuple[float, int, Request, RequestOutput]] = []
        self._num_sent = 0

    def prompt_of(self, request: Request) -> Request:
        """What the prefill pool is asked: the prompt and one token."""
        self._requests[request.request_id] = request
        return replace(request, sampling_params=replace(request.sampling_params, max_tokens=1, stop=()))

    def send(self, replica: Replica, prefilled: RequestOutput) -> None:
        finished_s = prefilled.metrics.finished_s
        assert finished_s is not None
        request = self._requests.pop(prefilled.request_id)
        start_s = max(finished_s, self._free_s.get(replica, 0.0))
        end_s = start_s + self._link.transfer_s(len(request.prompt_token_ids))
        self._free_s[replica] = end_s - self._link.latency_s
        heapq.heappush(self._heap, (end_s, self._num_sent, request, prefilled))
        self._num_sent += 1

    def arrive(self, decode: Fleet, time_s: float | int) -> None:
        """Those that are there by now go to the decode pool."""
        while self._heap and self._heap[0][0] <= time_s:
            arrival_s, _, request, prefilled = heapq.heappop(self._heap)
            decode.serve(replace(request, arrival_s=arrival_s), prefilled)


def run_pools(requests: Iterable[Request], prefill: Fleet, decode: Fleet, link: Link) -> None:
    """Serve `requests`: prompts in one fleet, the rest in the other. The decode pool's engines keep what becomes of a
    request from its arrival to its end; those of the prefill pool, its life until its first token was computed.

    Raises:
        ConfigError, InvalidRequestError, SimulationStuckError: As `run_fleet`.
    """
    on_their_way = _OnTheirWay(link)
    prefill.hand_over(on_their_way.send)
    for request in in_order(requests):
        prefill.run_until(request.arrival_s)  # what ends after this, ends later than that
        on_their_way.arrive(decode, request.arrival_s)
        prefill.serve(on_their_way.prompt_of(request))
    prefill.finish()
    on_their_way.arrive(decode, math.inf)
    decode.finish()
