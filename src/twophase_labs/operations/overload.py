"""One overload, met by a front end that can degrade: virtual time, the engine's own scheduler.

The answers have become many times as long as planned, as in the first incident. Once a second the front end looks at
the engine and sets a level; what a level means is in `RUNGS`.
"""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from twophase.core.plan import SampledToken
from twophase.core.request import Request, SamplingParams
from twophase.scheduling.policy import Policy, Step, by_priority, decodes_first
from twophase.scheduling.sequence import Sequence
from twophase_labs.operations.service import ON_L4, Asked, Traffic, drawn
from twophase_tools.load.slo import Slo
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.step_load import load_of

RUNGS = (
    "as always",
    "an answer ends after 200 tokens",
    "and prompts in chunks of 256 tokens a step, not 512",
    "and documents are refused: 429, Retry-After",
    "and of a prompt only the first 64 and the last 1,000 tokens count",
)
LAST = len(RUNGS) - 1
MAX_ANSWER, CHUNKS, SINKS, TAIL = 200, (512, 512, 256, 256, 256), 64, 1000
LOOK_EVERY_S = 1.0
PATIENCE_S = 60.0  # a client that has no first token by then goes away
SLO = Slo(ttft_s=5.0, tpot_s=0.12)
USUAL = Traffic()
FLOOD = Traffic(rate_per_s=3.5, output_scale=6.0, length_s=120.0)
LIMITS: dict[str, Any] = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "max_model_len": 8192,
    "num_blocks": ON_L4.num_blocks(),
    "block_size": 16,
}

Look = Callable[[float, float, float], int]


@final
class Chunked(Policy):
    """As `ChunkedPrefillPolicy`, with a step's tokens that the front end may change between steps."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        decodes_first(step, self.max_tokens)


@dataclass
class Client:
    """One request, and what became of it."""

    asked: Asked
    arrival_s: float
    token_times_s: list[float]
    end: str = ""  # 'whole', 'cut', 'refused' or 'gone'

    @property
    def is_good(self) -> bool:
        """It has an answer, and within the SLO."""
        times = self.token_times_s
        if self.end not in ("whole", "cut"):
            return False
        tpot_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None
        return SLO.is_met(times[0] - self.arrival_s, tpot_s)


@dataclass(frozen=True)
class Overload:
    """A run. `levels`, `kv_usage` and `queue_age_s` are of each look."""

    clients: tuple[Client, ...]
    num_preemptions: int
    times_s: tuple[float, ...]
    levels: tuple[int, ...]
    kv_usage: tuple[float, ...]
    queue_age_s: tuple[float, ...]
    length_s: float

    def num(self, end: str) -> int:
        return sum(client.end == end for client in self.clients)

    @property
    def num_good(self) -> int:
        return sum(client.is_good for client in self.clients)

    @property
    def goodput_per_s(self) -> float:
        """Requests per second that were answered within the SLO, cut ones included."""
        return self.num_good / self.length_s

    @property
    def line(self) -> str:
        return (
            f"{self.goodput_per_s:.2f} requests/s within the SLO, of {len(self.clients) / self.length_s:.2f}; "
            f"{self.num_preemptions:3} preemptions; {self.num('whole'):3} answered in full, {self.num('cut'):3} cut, "
            f"{self.num('refused'):2} refused, {self.num('gone'):3} gave up waiting"
        )


def overload(look: Look | None, traffic: Traffic = FLOOD, seed: int = 1) -> Overload:
    """The traffic, with a front end that asks `look` for its level once a second; None: one that does nothing."""
    return _Run(look, traffic, seed).run()


class _Run:
    def __init__(self, look: Look | None, traffic: Traffic, seed: int) -> None:
        self._look, self._length_s = look, traffic.length_s
        self._policy = Chunked(CHUNKS[0])
        self._scheduler = make_scheduler(LIMITS, self._policy)
        draw = random.Random(f"{seed} overload")
        self._coming: list[tuple[float, int, Asked]] = []
        now_s = 0.0
        while (now_s := now_s + draw.expovariate(traffic.rate_per_s)) < traffic.length_s:
            heapq.heappush(self._coming, (now_s, len(self._coming), drawn(draw, traffic)))
        self._clients: dict[str, Client] = {}
        self._waiting: dict[str, float] = {}  # those without a token yet, by arrival
        self._level, self._next_look_s = 0, 0.0
        self._num_preemptions = 0
        self._looks: list[tuple[float, int, float, float]] = []

    def run(self) -> Overload:
        now_s = 0.0
        while self._coming or self._scheduler.has_unfinished:
            self._look_at(now_s)
            while self._coming and self._coming[0][0] <= now_s:
                self._arrive(*heapq.heappop(self._coming))
            if self._scheduler.has_unfinished:
                now_s += self._step(now_s)
            elif self._coming:
                now_s = self._coming[0][0]
        times_s, levels, usage, ages_s = zip(*self._looks, strict=True)
        return Overload(
            tuple(self._clients.values()), self._num_preemptions, times_s, levels, usage, ages_s, self._length_s
        )

    def _look_at(self, now_s: float) -> None:
        """At the first moment between two steps after each second; clients that waited too long go away."""
        if now_s < self._next_look_s:
            return
        self._next_look_s = math.floor(now_s) + LOOK_EVERY_S
        for request_id, arrival_s in [*self._waiting.items()]:
            if now_s - arrival_s > PATIENCE_S:
                self._scheduler.abort(request_id)
                self._end(request_id, "gone")
        cache = self._scheduler.cache.stats()
        usage = cache.num_in_use / cache.num_blocks
        age_s = now_s - min(self._waiting.values(), default=now_s)
        if self._look is not None:
            self._level = min(max(int(self._look(now_s, usage, age_s)), 0), LAST)
        self._policy.max_tokens = CHUNKS[self._level]
        if self._level:
            self._cut_short()
        self._looks.append((now_s, self._level, usage, age_s))

    def _cut_short(self) -> None:
        """Answers that are as long as an answer may be by now end, also those begun before."""
        for request_id, client in self._clients.items():
            if not client.end and len(client.token_times_s) >= MAX_ANSWER:
                self._scheduler.abort(request_id)
                self._end(request_id, "cut")

    def _arrive(self, arrival_s: float, number: int, asked: Asked) -> None:
        request_id = f"r{number}"
        self._clients[request_id] = Client(asked, arrival_s, [])
        if self._level >= 3 and asked.kind == "documents":
            self._clients[request_id].end = "refused"
            return
        num_prompt = asked.num_prompt_tokens
        if self._level >= 4:
            num_prompt = min(num_prompt, SINKS + TAIL)
        most = min(asked.max_tokens, MAX_ANSWER) if self._level else asked.max_tokens
        params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True)
        self._clients[request_id].asked = replace(asked, num_prompt_tokens=num_prompt)
        self._scheduler.add(Request(request_id, (number,) * num_prompt, params, arrival_s=arrival_s))
        self._waiting[request_id] = arrival_s

    def _step(self, now_s: float) -> float:
        plan = self._scheduler.schedule(now_s)
        self._num_preemptions += len(plan.preempted)
        took_s = float(ON_L4.cost(load_of(plan)).total_s)
        sampled = {chunk.seq_id: (SampledToken(0),) * chunk.num_samples for chunk in plan.chunks}
        for update in self._scheduler.update(plan, sampled):
            client = self._clients[update.request_id]
            client.token_times_s += [now_s + took_s] * len(update.tokens)
            self._waiting.pop(update.request_id, None)
            if update.finish_reason is not None:
                is_whole = len(client.token_times_s) >= client.asked.max_tokens
                self._end(update.request_id, "whole" if is_whole else "cut")
        return took_s

    def _end(self, request_id: str, how: str) -> None:
        self._clients[request_id].end = how
        self._waiting.pop(request_id, None)
