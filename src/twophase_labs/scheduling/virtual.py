"""The engine's scheduler on a virtual clock: no model, no tensors, a step takes as long as a formula says.

Everything else is real: the scheduler, its blocks, the policies, and the records and traces that come of it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from twophase.cache.manager import CacheManager
from twophase.core.errors import TwophaseError
from twophase.core.plan import SampledToken, StepPlan, StepTrace
from twophase.core.request import FinishReason, Request, SamplingParams
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.policy import Policy
from twophase.scheduling.scheduler import Scheduler
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.workloads import TimedRequest


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step: a straight line in what it computes.

    Attributes:
        step_s: Of any step, however small.
        prompt_token_s: Of each prompt token in it.
        decode_s: Of each decode in it.
    """

    step_s: float | int = 0
    prompt_token_s: float | int = 0
    decode_s: float | int = 0

    def __call__(self, plan: StepPlan) -> float | int:
        num_prompt_tokens = plan.num_tokens - plan.num_decodes
        return self.step_s + num_prompt_tokens * self.prompt_token_s + plan.num_decodes * self.decode_s


class VirtualRun(NamedTuple):
    """What happened, as an engine tells it."""

    records: tuple[RequestRecord, ...]
    steps: tuple[StepTrace, ...]


class TooManyStepsError(TwophaseError):
    """The run did not come to its end."""


def play(
    policy: Policy | None,
    requests: Iterable[TimedRequest],
    cost_s: Callable[[StepPlan], float | int],
    *,
    max_num_seqs: int = 64,
    token_budget: int = 8192,
    num_blocks: int = 4096,
    block_size: int = 16,
    max_steps: int = 100_000,
) -> VirtualRun:
    """Serve requests, in order of arrival, to the end of the last.

    Raises:
        TooManyStepsError: They did not end within `max_steps`.
    """
    config = SchedulerConfig(max_num_seqs, max(token_budget, max_num_seqs), max_model_len=num_blocks * block_size)
    cache = CacheManager(num_blocks, block_size, enable_prefix_caching=False)
    asked = [_request(timed) for timed in requests]
    return serve(Scheduler(config, cache, policy), asked, cost_s, max_steps=max_steps)


def serve(
    scheduler: Scheduler,
    requests: Iterable[Request],
    cost_s: Callable[[StepPlan], float | int],
    token_of: Callable[[str, int], int] = lambda name, number: 0,
    *,
    max_steps: int,
) -> VirtualRun:
    """The same on a fresh scheduler; `token_of(request id, number)` is the token that a request samples."""
    coming = deque(requests)
    asked = {request.request_id: request for request in coming}
    first_s: dict[str, float | int] = {}
    tokens_s: dict[str, list[float | int]] = {name: [] for name in asked}
    num_preemptions = dict.fromkeys(asked, 0)
    reasons: dict[str, FinishReason | None] = {}
    steps: list[StepTrace] = []
    now_s: float | int = 0.0
    while coming or scheduler.has_unfinished:
        while coming and coming[0].arrival_s <= now_s:
            scheduler.add(coming.popleft())
        if not scheduler.has_unfinished:
            now_s = coming[0].arrival_s
            continue
        plan = scheduler.schedule(now_s)
        if plan.is_empty:
            assert plan.wake_s is not None
            now_s = min(plan.wake_s, coming[0].arrival_s) if coming else plan.wake_s
            continue
        if len(steps) == max_steps:
            raise TooManyStepsError(f"{len(scheduler.sequences)} requests are unfinished after {max_steps:,} steps.")
        names = {seq_id: sequence.request.request_id for seq_id, sequence in scheduler.sequences.items()}
        for chunk in plan.chunks:
            first_s.setdefault(names[chunk.seq_id], now_s)
        for seq_id in plan.preempted:
            num_preemptions[names[seq_id]] += 1
        run_s, sampled = cost_s(plan), {}
        for chunk in plan.chunks:
            name = names[chunk.seq_id]
            sampled[chunk.seq_id] = (SampledToken(token_of(name, len(tokens_s[name]))),) * chunk.num_samples
        updates = scheduler.update(plan, sampled)
        for update in updates:
            if update.tokens:
                tokens_s[update.request_id].append(now_s + run_s)
            reasons[update.request_id] = update.finish_reason
        ended = tuple((update.request_id, 0) for update in updates if update.finish_reason is not None)
        steps.append(_trace(len(steps), now_s, run_s, plan, names, ended, scheduler))
        now_s += run_s
    records = tuple(
        RequestRecord(
            request_id=name,
            arrival_s=request.arrival_s,
            first_scheduled_s=first_s[name],
            token_times_s=tuple(tokens_s[name]),
            finished_s=tokens_s[name][-1],
            num_prompt_tokens=len(request.prompt_token_ids),
            num_preemptions=num_preemptions[name],
            finish_reason=reasons[name],
        )
        for name, request in asked.items()
    )
    return VirtualRun(records, tuple(steps))


def steps_of(policy: Policy, **jobs: tuple[int, int]) -> list[dict[str, int]]:
    """Tokens of each step, by request: `steps_of(policy, A=(10, 3))` for one with a prompt of 10 and 3 tokens to write.

    All come at once, in the order given, and there is room for all of them.
    """
    requests = [TimedRequest(name, 0.0, *lengths) for name, lengths in jobs.items()]
    steps = play(policy, requests, StepCost(step_s=1.0)).steps
    return [{name: num_tokens for name, _, _, num_tokens in step.chunks} for step in steps]


def _request(timed: TimedRequest) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=timed.num_output_tokens, ignore_eos=True)
    return Request(timed.request_id, (0,) * timed.num_prompt_tokens, params, arrival_s=timed.arrival_s)


def _trace(
    number: int,
    now_s: float | int,
    run_s: float | int,
    plan: StepPlan,
    names: dict[int, str],
    ended: tuple[tuple[str, int], ...],
    scheduler: Scheduler,
) -> StepTrace:
    cache = scheduler.cache.stats()
    return StepTrace(
        step=number,
        start_s=float(now_s),
        schedule_s=0.0,
        run_s=float(run_s),
        update_s=0.0,
        chunks=tuple((names[chunk.seq_id], 0, chunk.start, len(chunk.token_ids)) for chunk in plan.chunks),
        num_decodes=plan.num_decodes,
        preempted=tuple((names[seq_id], 0) for seq_id in plan.preempted),
        finished=ended,
        num_waiting=scheduler.num_waiting,
        num_running=scheduler.num_running,
        blocks_in_use=cache.num_in_use,
        blocks_cached=cache.num_cached,
        blocks_free=cache.num_free,
        slots_in_use=cache.num_slots_in_use,
    )
