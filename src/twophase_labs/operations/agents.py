"""Sessions that come back: agents that wait for tools, and chats that wait for people, on one simulated L4.

Scheduler, prefix cache and the door `KVTier` are the engine's; a step takes as long as the roofline says.
"""

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, final

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from twophase import LLM, SamplingParams
from twophase.cache.manager import CacheManager
from twophase.core.plan import BlockCopy
from twophase.core.request import Request, RequestOutput
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.scheduler import Scheduler
from twophase_features.offloading.host_memory import HostBlocks, pinned_blocks
from twophase_features.offloading.tier import KVTier
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_labs.kit.draw import row_of_axes
from twophase_labs.operations.service import ON_L4, SHAPE
from twophase_tools.colours import INK, LINE, PREFILL
from twophase_tools.simulate.simulator import Replica

BLOCK_SIZE, TICK_S = 16, 0.5
BLOCK_BYTES = BLOCK_SIZE * SHAPE.kv_bytes_per_token


@dataclass(frozen=True)
class Sessions:
    """Sessions that begin one after the other; each asks again some time after it was answered.

    Attributes:
        first, more, answer: Tokens of the first prompt, of what each later prompt adds to it, of an answer; medians.
        pauses_s: From an answer to the next prompt: one of these ranges, each as likely.
    """

    name: str
    num_sessions: int
    num_turns: int
    first: int
    more: int
    answer: int
    pauses_s: Sequence[tuple[float | int, float | int]]
    gap_s: float = 4.0


# Four tools in five answer at once; the fifth runs tests.
AGENTS = Sessions("agents", 14, 12, 2500, 500, 60, ((0.5, 3), (0.5, 3), (0.5, 3), (0.5, 3), (20, 60)))
CHATS = Sessions("chats", 60, 4, 900, 150, 120, ((20, 90),), gap_s=2.0)


@dataclass(frozen=True)
class Turn:
    """One prompt of a session, in tokens: `num_new` were not in any prompt before."""

    num_prompt: int
    num_new: int
    num_cached: int
    ttft_s: float

    @property
    def num_recomputed(self) -> int:
        """Seen before, and computed again. At most a block of what was seen cannot be found."""
        return max(0, self.num_prompt - self.num_new - self.num_cached - BLOCK_SIZE)


@dataclass
class Served:
    """What became of a workload: the turns of each session, and the blocks that came back from host memory."""

    name: str
    turns: dict[int, list[Turn]] = field(default_factory=dict)
    num_loaded: int = 0

    @property
    def num_recomputed(self) -> int:
        return sum(turn.num_recomputed for turns in self.turns.values() for turn in turns)

    @property
    def line(self) -> str:
        turns = [turn for turns in self.turns.values() for turn in turns]
        ttfts_s = sorted(turn.ttft_s for turn in turns)
        hit_rate = sum(turn.num_cached for turn in turns) / sum(turn.num_prompt for turn in turns)
        return (
            f"{self.name:28} hit rate {hit_rate:4.0%}, {self.num_recomputed:7,} tokens recomputed, TTFT p50 "
            f"{ttfts_s[len(ttfts_s) // 2]:4.1f} s, p95 {ttfts_s[int(0.95 * len(ttfts_s))]:4.1f} s"
        )


@final
class OwnTier(KVTier):
    """A tier in host memory: the learner's index says which blocks it holds, and where; the copies are made here.

    Args:
        index: Has `match(keys)`, the places of the first keys that it holds, and `store(keys)`, a place for each key.
    """

    def __init__(self, index: Any, num_blocks: int) -> None:
        self._index, self._num_blocks = index, num_blocks
        self._blocks: HostBlocks | None = None  # none in a simulation
        self.num_loaded = 0

    def attach(self, runner: Any) -> None:
        self._blocks = pinned_blocks(runner.kv_cache, self._num_blocks)

    def match(self, keys: Sequence[Any]) -> int:
        return len(self._index.match(keys))

    def load(self, keys: Sequence[Any], block_ids: Sequence[int]) -> int:
        places = self._index.match(keys)
        if self._blocks is not None:
            self._blocks.restore([BlockCopy(*move) for move in zip(places, block_ids, strict=False)])
        self.num_loaded += len(places)
        return len(places)

    def store(self, keys: Sequence[Any], block_ids: Sequence[int]) -> int:
        moves = [
            BlockCopy(block, place)
            for block, place in zip(block_ids, self._index.store(keys), strict=True)
            if place is not None
        ]
        if self._blocks is not None:
            self._blocks.save(moves)
        return len(moves)


@final
class Expiring:
    """An index that forgets each block that was not used for `limit_s`: a time to live (TTL)."""

    def __init__(self, index: Any, limit_s: float) -> None:
        self._index, self.limit_s = index, limit_s
        self.now_s: Callable[[], float] = lambda: 0.0
        self._used_s: dict[Any, float] = {}

    def match(self, keys: Sequence[Any]) -> list[int]:
        begin_s = self.now_s() - self.limit_s
        places: list[int] = self._index.match(list(takewhile(lambda key: self._used_s.get(key, -1.0) >= begin_s, keys)))
        self._used_s |= dict.fromkeys(keys[: len(places)], self.now_s())
        return places

    def store(self, keys: Sequence[Any]) -> list[int | None]:
        self._used_s |= dict.fromkeys(keys, self.now_s())
        places: list[int | None] = self._index.store(keys)
        return places


def serve(sessions: Sessions, index: Any = None, num_host_blocks: int = 0, name: str = "pool alone") -> Served:
    """All turns of all sessions on one L4 with Llama-3-8B.

    Args:
        index: Of a tier in host memory with so many blocks; None: there is no tier.
    """
    tier = None if index is None else OwnTier(index, num_host_blocks)
    cache = CacheManager(ON_L4.num_blocks(), BLOCK_SIZE, True, tier=tier)
    limits = SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=16384)
    replica = Replica(Scheduler(limits, cache, ChunkedPrefillPolicy(512)), ON_L4, keeps_steps=False)
    if isinstance(index, Expiring):
        index.now_s = lambda: float(replica.now_s)
    run = _Run(sessions, replica, Served(name))
    run.go()
    if tier is not None:
        run.served.num_loaded = tier.num_loaded
    return run.served


class _Run:
    """The events of one run: a session's next prompt comes a pause after its last answer."""

    def __init__(self, sessions: Sessions, replica: Replica, served: Served) -> None:
        self._sessions, self._replica, self.served = sessions, replica, served
        replica.after_end = self._answer
        self._draws = [random.Random(f"{sessions.name} {number}") for number in range(sessions.num_sessions)]
        self._prompts: list[list[int]] = [[] for _ in self._draws]
        self._num_new = [0] * len(self._draws)
        self._coming = [(sessions.gap_s * number, number) for number in range(len(self._draws))]

    def go(self) -> None:
        tick_s = 0.0
        # In ticks no longer than the shortest pause, so that no prompt comes before a step that is done already.
        while self._coming or self._replica.num_outstanding(tick_s):
            tick_s += TICK_S
            while self._coming and self._coming[0][0] <= tick_s:
                self._ask(*heapq.heappop(self._coming))
            self._replica.run_until(tick_s)

    def _ask(self, time_s: float, number: int) -> None:
        sessions, turns = self._sessions, self.served.turns.setdefault(number, [])
        draw, prompt = self._draws[number], self._prompts[number]
        median = sessions.more if turns else sessions.first
        self._extend(number, round(median * draw.lognormvariate(0, 0.4)))
        num_answer = max(1, round(sessions.answer * draw.lognormvariate(0, 0.4)))
        params = SamplingParams(temperature=0, max_tokens=num_answer, ignore_eos=True)
        self._replica.run_until(time_s)
        self._replica.submit(Request(f"{number}.{len(turns)}", tuple(prompt), params, arrival_s=time_s))

    def _extend(self, number: int, num_tokens: int) -> None:
        """A made-up token that no other part of any prompt has, repeated."""
        prompt = self._prompts[number]
        prompt += [1 + number + len(self._draws) * len(prompt)] * num_tokens
        self._num_new[number] += num_tokens

    def _answer(self, output: RequestOutput) -> None:
        metrics, number = output.metrics, int(output.request_id.partition(".")[0])
        turns = self.served.turns[number]
        assert metrics.ttft_s is not None
        assert metrics.finished_s is not None
        turns.append(Turn(metrics.num_prompt_tokens, self._num_new[number], metrics.num_cached_tokens, metrics.ttft_s))
        self._num_new[number] = 0
        if len(turns) < self._sessions.num_turns:
            self._extend(number, len(output.outputs[0].token_ids))  # as part of the next prompt
            low_s, high_s = self._draws[number].choice(self._sessions.pauses_s)
            pause_s = self._draws[number].uniform(low_s, high_s)
            heapq.heappush(self._coming, (metrics.finished_s + pause_s, number))


def draw_turns(runs: Mapping[str, Served], session: int) -> Figure:
    """Each prompt of one session: what was found, what is new, what was computed a second time."""
    figure, panels = row_of_axes(len(runs), 10, 3.2)
    for axes, (title, served) in zip(panels, runs.items(), strict=True):
        turns = served.turns[session]
        numbers, found = range(1, len(turns) + 1), [turn.num_cached for turn in turns]
        again = [turn.num_recomputed for turn in turns]
        rest = [turn.num_prompt - turn.num_cached - turn.num_recomputed for turn in turns]
        axes.bar(numbers, found, color="white", edgecolor=LINE, label="found")
        axes.bar(numbers, rest, bottom=found, color=PREFILL, alpha=0.45, edgecolor=LINE, label="new")
        bottom = [f + r for f, r in zip(found, rest, strict=True)]
        axes.bar(numbers, again, bottom=bottom, color=PREFILL, edgecolor=INK, hatch="///", label="computed again")
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(xlabel="turn", ylim=(0, 1.15 * max(turn.num_prompt for turn in turns)))
    panels[0].set_ylabel("tokens of the prompt")
    panels[0].legend(frameon=False, fontsize=9, loc="upper left")
    figure.tight_layout()
    plt.close(figure)
    return figure


def on_the_engine(make_index: Callable[[int], Any], num_host_blocks: int = 96) -> str:
    """SmolLM2 with a pool too small for three sessions, once without and once with a tier: tokens computed."""
    told, texts = [], []
    for has_tier in (False, True):
        tier = OwnTier(make_index(num_host_blocks), num_host_blocks) if has_tier else None
        llm = LLM(num_kv_blocks=24, block_size=BLOCK_SIZE, max_model_len=320, kv_tier=tier)
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        prompts = [[200 + number] + [300 + 7 * number] * 150 for number in range(3)]
        for _turn in range(3):
            for number, prompt in enumerate(prompts):
                (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
                prompts[number] = prompt + list(output.outputs[0].token_ids) + [400 + number] * 24
        texts.append(prompts)
        computed = sum(chunk[3] for step in llm.engine.trace for chunk in step.chunks)
        told.append(f"{'with your tier' if tier else 'pool alone':14} {computed:5,} tokens computed")
    return "\n".join([*told, f"the same tokens: {texts[0] == texts[1]}"])
