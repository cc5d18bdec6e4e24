"""A policy whose admission is left open, and the deadlock of section 3."""

from collections.abc import Callable
from typing import Any, final

from twophase.cache.manager import CacheManager
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.policy import Policy, Step, by_priority
from twophase.scheduling.scheduler import Scheduler
from twophase.scheduling.sequence import Sequence
from twophase_labs.scheduling.memory import Held

Admits = Callable[[Held, list[Held], int, int, int, float], bool]


@final
class GatedPolicy(Policy):
    """Decodes first, then prefills, and waiting requests for which `can_admit` says yes."""

    def __init__(self, can_admit: Admits, cache: CacheManager, watermark: float) -> None:
        self.can_admit, self.cache, self.watermark = can_admit, cache, watermark

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        for sequence in step.running:
            if sequence.is_decoding:
                step.decode(sequence)
        for sequence in step.running:
            if not sequence.is_decoding:
                step.prefill(sequence)
        for sequence in step.waiting:
            if not (self._lets_in(sequence, step) and step.admit(sequence)):
                break

    def _lets_in(self, sequence: Sequence, step: Step) -> bool:
        cache, running = self.cache, [_held(one) for one in step.running]
        sizes = cache.num_free_blocks, cache.num_blocks, cache.block_size
        return self.can_admit(_held(sequence), running, *sizes, self.watermark)


def _held(sequence: Sequence) -> Held:
    return Held(len(sequence.token_ids), sequence.max_num_tokens)


def gated_scheduler(limits: dict[str, Any], can_admit: Admits, watermark: float = 0.0) -> Scheduler:
    """A scheduler that leaves no headroom of its own: a request that fits is admitted if `can_admit` agrees."""
    options = dict(limits)
    cache = CacheManager(options.pop("num_blocks"), options.pop("block_size"), enable_prefix_caching=False)
    config = SchedulerConfig(**options | {"reserve_growth": False})
    return Scheduler(config, cache, GatedPolicy(can_admit, cache, watermark))


@final
class WholePrompts(Policy):
    """The deadlock of section 3: a waiting prompt is let in when all of it fits the step, and nothing passes it."""

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        return by_priority(sequence)

    def plan(self, step: Step) -> None:
        for sequence in step.running:
            step.decode(sequence)
        for sequence in step.waiting:
            if sequence.num_prompt_tokens > step.budget or not step.admit(sequence):
                break

    def __repr__(self) -> str:
        return "WholePrompts()"
