"""One engine, simulated: the real scheduler plans, and a cost model tells when the step is over.

Discrete events, without an event library: a replica has one clock and one thing going on at a time, so its next event
is always the end of the current step, and requests come from one sorted stream. A list of clocks is all it takes;
SimPy's processes would add a dependency and microseconds per event, and no clarity.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import final

import numpy as np
from jaxtyping import Float

from twophase.core.errors import InvalidRequestError, TwophaseError
from twophase.core.plan import SampledToken, SequenceUpdate, StepPlan, StepTrace
from twophase.core.request import Request
from twophase.scheduling.scheduler import Scheduler
from twophase.scheduling.sequence import Sequence as SchedulerSequence
from twophase.scheduling.sequence import SequenceStatus
from twophase_tools.load.records import RequestRecord
from twophase_tools.simulate.arrived_pages import ArrivedPages
from twophase_tools.simulate.cost_model import CostModel, StepCost
from twophase_tools.simulate.fast_forward import num_repeats, repeat_decodes, repeated_sequences
from twophase_tools.simulate.observers import Observer, Recorder
from twophase_tools.simulate.progress import RequestProgress
from twophase_tools.simulate.step_load import load_of
from twophase_tools.simulate.waiting import WaitingRequests

MAX_COMPLETIONS = 1 << 20  # of a request: keeps the made-up tokens of two requests apart
MAX_EMPTY_PLANS = 10_000  # in a row, with no request coming: a policy that puts off for ever


class SimulationStuckError(TwophaseError):
    """The scheduler plans nothing, again and again, though requests are unfinished."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Steps that repeat the last plan, not yet done: step i is over at `ends_s[i]`. Only the last may end anyone."""

    sequences: Sequence[SchedulerSequence]
    costs_s: Sequence[float]
    ends_s: Sequence[float | int]
    run_s: Float[np.ndarray, "k"]
    schedule_s: float | int
    update_s: float | int


@final
class Replica:
    """A scheduler with its cache, under a simulated clock. Only the simulation calls it.

    A step that starts at time t knows every request that arrived at or before t, as in an engine's loop. Tokens are
    there when their step is over. Nobody computes them: each request ends at its `max_tokens` or at the context limit,
    and the tokens it samples are unlike those of any other request, so they share no cached blocks.

    Args:
        scheduler: Fresh; nothing in it is unfinished.
        fast_forward: Do long stretches of decodes at once (see `twophase_tools.simulate.fast_forward`). The results are
            the same; without it, each step is planned.

    Attributes:
        now_s: When the latest step that was done ended. (Steps of a stretch are done when it is over or disturbed.)
        observer: Hears what becomes of its requests.
        after_end: Called at a request's end, after the observer; None: nothing is.
    """

    def __init__(
        self, scheduler: Scheduler, cost_model: CostModel, observer: Observer, *, fast_forward: bool = True
    ) -> None:
        self._scheduler = scheduler
        self._pages = ArrivedPages(scheduler.cache)
        self._cost_model = cost_model
        self.observer = observer
        self.after_end: Callable[[RequestProgress], None] | None = None
        self._fast_forward = fast_forward
        self.now_s: float | int = 0.0
        self._num_steps = 0
        self._progress: dict[str, RequestProgress] = {}
        self._waiting = WaitingRequests()
        self._hits_before = (0, 0)  # tokens looked up in the prefix cache and found there, before the step
        self._stretch: _Stretch | None = None
        self._last_plan: StepPlan | None = None
        self._is_undisturbed = False  # nothing was added or ended since the last plan was made
        self._wake_s: float | int | None = None  # the scheduler asked not to be called before
        self._num_empty_plans = 0
        self._num_just_ended = 0  # requests, in the latest step
        self._num_tokens = 0  # of prompts and outputs, of unfinished requests
        self._num_tokens_just_gone = 0  # how much smaller the latest step made that; below 0: larger
        self._busy_s: float | int = 0.0  # in all steps that were done

    # -- what a router may ask, at a time with which `run_until` was called last

    @property
    def capacity_tokens(self) -> int:
        """Slots of its K/V pool."""
        return self._scheduler.planner.num_slots

    def num_outstanding(self, time_s: float | int) -> int:
        """Requests submitted and not finished at `time_s`."""
        return len(self._progress) + (self._num_just_ended if self.now_s > time_s else 0)

    def num_outstanding_tokens(self, time_s: float | int) -> int:
        """Tokens of these requests, waiting ones included: their prompts, and what was generated by `time_s`."""
        if self._stretch is not None:
            return self._num_tokens + len(self._stretch.sequences) * bisect_right(self._stretch.ends_s, time_s)
        return self._num_tokens + (self._num_tokens_just_gone if self.now_s > time_s else 0)

    def queue_age_s(self, time_s: float | int) -> float:
        """How long the oldest request that no step has taken up yet has waited; 0: none waits."""
        return self._waiting.oldest_s(time_s) or 0.0

    def busy_s(self, time_s: float | int) -> float:
        """Seconds it has spent in steps up to `time_s`."""
        if self._stretch is not None or self.now_s > time_s:
            return float(self._busy_s + time_s - self.now_s)
        return float(self._busy_s)

    # -- what happens to it

    def submit(self, request: Request, prefilled: RequestProgress | None = None) -> None:
        """A request arrives, at or after every earlier one. `run_until(request.arrival_s)` comes first.

        Args:
            prefilled: What became of its prompt on another engine. The K and V of its full blocks come along, and are
                loaded when it is admitted; its latencies count from its arrival there.

        Raises:
            InvalidRequestError: The scheduler could never serve it.
        """
        self._settle(request.arrival_s)
        progress = RequestProgress.start(request)
        if prefilled is not None:
            progress = prefilled.go_on(request, self._pages.expect(request))
        self._scheduler.add(request)
        self._progress[request.request_id] = progress
        self._num_tokens += len(request.prompt_token_ids)
        self._waiting.add(request.arrival_s, progress)
        self._waiting.oldest_s(request.arrival_s)  # lets go of those that have left
        if self._wake_s is not None or len(self._progress) == 1:
            self.now_s = max(self.now_s, request.arrival_s)
        self._wake_s = None
        self._num_empty_plans = 0
        self._is_undisturbed = False

    def run_until(self, limit_s: float | int) -> None:
        """Do every step that starts before `limit_s`.

        Raises:
            SimulationStuckError, PolicyError: The scheduler plans nothing, or nonsense.
        """
        while self._progress and self.now_s < limit_s:
            if self._wake_s is not None:
                if self._wake_s >= limit_s:
                    return
                self.now_s, self._wake_s = max(self.now_s, self._wake_s), None
            if self._stretch is None and self._fast_forward and self._last_plan is not None:
                self._stretch = self._look_ahead(self._last_plan)
            if self._stretch is None:
                self._step()
            elif self._last_start_s(self._stretch) < limit_s:
                self._advance(self._stretch, len(self._stretch.ends_s))
            else:
                return  # disturbed or over, it will be done

    # -- single steps

    def _step(self) -> None:
        start_s = self.now_s
        num_loaded_before = self._pages.num_loaded
        plan = self._scheduler.schedule(start_s)
        if plan.is_empty:
            self._sleep(plan.wake_s)
            return
        self._num_empty_plans = 0
        self._num_just_ended = 0
        num_tokens = self._num_tokens
        load = load_of(plan)
        num_moved = load.num_moved_blocks - (self._pages.num_loaded - num_loaded_before)
        cost = self._cost_model.cost(load._replace(num_moved_blocks=num_moved))
        self.now_s = start_s + cost.total_s
        self._busy_s += cost.total_s
        chunks = self._describe(plan, start_s + cost.schedule_s)
        preempted = self._note_preemptions(plan)
        sequences = self._scheduler.sequences
        sampled = {
            chunk.seq_id: (SampledToken(_token_of(sequences[chunk.seq_id])),) * chunk.num_samples
            for chunk in plan.chunks
        }
        finished = self._note_updates(self._scheduler.update(plan, sampled))
        self._last_plan = plan
        self._is_undisturbed = not finished
        if self.observer.wants_details:
            self._note_step(self._num_steps, start_s, cost, chunks, plan, preempted, finished)
        self._num_steps += 1
        self._num_tokens_just_gone = num_tokens - self._num_tokens

    def _sleep(self, wake_s: float | int | None) -> None:
        """Nothing is planned; the policy told when to ask again, unless a request comes first."""
        self._num_empty_plans += 1
        if wake_s is None or not self.now_s < wake_s < math.inf or self._num_empty_plans > MAX_EMPTY_PLANS:
            cache = self._scheduler.cache.stats()
            raise SimulationStuckError(
                f"{self._num_empty_plans} times in a row the scheduler planned nothing, the last time at "
                f"{self.now_s:.6g} s to wait until {wake_s}, though {len(self._progress)} requests are unfinished: "
                f"{self._scheduler.num_waiting} sequences wait, {self._scheduler.num_running} run, {cache.num_in_use} "
                f"of {cache.num_blocks} blocks are in use; {self._scheduler.policy}, {self._scheduler.config}. A "
                f"policy must plan something or wait for a time that comes."
            )
        self._wake_s = wake_s

    def _describe(self, plan: StepPlan, scheduled_s: float | int) -> tuple[tuple[str, int, int, int], ...]:
        """Note first admissions; the chunks as a trace shows them, if anyone wants to see them."""
        sequences = self._scheduler.sequences
        for chunk in plan.chunks[plan.num_decodes :]:
            sequence = sequences[chunk.seq_id]
            progress = self._progress[sequence.request.request_id]
            if progress.first_scheduled_s is None:
                progress.first_scheduled_s, progress.num_cached_tokens = scheduled_s, sequence.num_cached_tokens
                if progress.elsewhere is not None:
                    self._pages.drop(progress.elsewhere.page_keys)
                    progress.first_scheduled_s = progress.elsewhere.first_scheduled_s
                    progress.num_cached_tokens = progress.elsewhere.num_cached_tokens
        if not self.observer.wants_details:
            return ()
        in_order = [(sequences[chunk.seq_id], chunk) for chunk in plan.chunks]
        return tuple(
            (sequence.request.request_id, sequence.index, chunk.start, len(chunk.token_ids))
            for sequence, chunk in in_order
        )

    def _note_preemptions(self, plan: StepPlan) -> tuple[tuple[str, int], ...]:
        sequences = self._scheduler.sequences
        victims = [sequences[seq_id] for seq_id in plan.preempted if seq_id in sequences]
        for victim in victims:
            self._progress[victim.request.request_id].num_preemptions += 1
        return tuple((victim.request.request_id, victim.index) for victim in victims)

    def _note_updates(self, updates: Sequence[SequenceUpdate]) -> tuple[tuple[str, int], ...]:
        """Who got a token, now, and whose last it was."""
        now_s = self.now_s
        gaps_s: list[float | int] = []
        finished: list[tuple[str, int]] = []
        for update in updates:
            progress = self._progress[update.request_id]
            completion = progress.completions[update.index]
            if update.tokens:
                completion.num_tokens += 1
                self._num_tokens += 1
                if completion.last_token_s is not None:
                    gaps_s.append(now_s - completion.last_token_s)
                elif progress.first_token_s is None:
                    progress.first_token_s = now_s
                completion.last_token_s = now_s
                if update.index == 0 and self.observer.wants_details:
                    progress.token_times_s.append(now_s)
            if update.finish_reason is not None:
                completion.finish_reason = update.finish_reason
                finished.append((update.request_id, update.index))
                self._note_end(progress)
        gaps_s.sort()
        self.observer.note_gaps(gaps_s, 1)
        return tuple(finished)

    def _note_end(self, progress: RequestProgress) -> None:
        progress.num_unfinished -= 1
        if progress.num_unfinished == 0:
            self._num_just_ended += 1
            self._num_tokens -= len(progress.request.prompt_token_ids) + progress.num_output_tokens
            progress.finished_s = self.now_s
            del self._progress[progress.request.request_id]
            self.observer.note_end(progress)
            if self.after_end is not None:
                self.after_end(progress)

    def _note_step(
        self,
        step: int,
        start_s: float | int,
        cost: StepCost,
        chunks: tuple[tuple[str, int, int, int], ...],
        plan: StepPlan,
        preempted: tuple[tuple[str, int], ...],
        finished: tuple[tuple[str, int], ...],
        num_slots_pending: int = 0,
    ) -> None:
        """`num_slots_pending`: slots that a stretch has not handed out yet, though the step would have."""
        cache = self._scheduler.cache.stats()
        num_looked_up, num_found = self._hits_before
        self._hits_before = (cache.num_queried_tokens, cache.num_hit_tokens)
        self.observer.note_step(
            StepTrace(
                step=step,
                start_s=float(start_s),
                schedule_s=float(cost.schedule_s),
                run_s=float(cost.run_s),
                update_s=float(cost.update_s),
                chunks=chunks,
                num_decodes=plan.num_decodes,
                preempted=preempted,
                finished=finished,
                num_waiting=self._scheduler.num_waiting,
                num_running=self._scheduler.num_running,
                blocks_in_use=cache.num_in_use,
                blocks_cached=cache.num_cached,
                blocks_free=cache.num_free,
                blocks_offloaded=plan.num_offloaded,
                blocks_loaded=len(plan.loaded),
                slots_in_use=cache.num_slots_in_use + num_slots_pending,
                prefix_cache_queries=cache.num_queried_tokens - num_looked_up,
                prefix_cache_hits=cache.num_hit_tokens - num_found,
                queue_age_s=self._waiting.oldest_s(start_s + cost.total_s),
            )
        )

    # -- many steps at once

    def _look_ahead(self, plan: StepPlan) -> _Stretch | None:
        """The steps that repeat `plan` until one of its sequences ends or may lack a block; None if there is none."""
        sequences = repeated_sequences(self._scheduler, plan, self._is_undisturbed)
        num_steps = num_repeats(self._scheduler.cache, sequences) if sequences else 0
        if not num_steps:
            return None
        schedule_s, update_s = self._cost_model.overhead_s(len(sequences))
        context = sum([len(sequence.token_ids) for sequence in sequences])
        run_s = self._cost_model.decode_run_s(len(sequences), context, num_steps)
        costs_s = (schedule_s + run_s + update_s).tolist()  # as StepCost.total_s adds them: the clock is the same
        ends_s = list(accumulate(costs_s, initial=self.now_s))[1:]
        return _Stretch(sequences, costs_s, ends_s, run_s, schedule_s, update_s)

    def _last_start_s(self, stretch: _Stretch) -> float | int:
        return stretch.ends_s[-2] if len(stretch.ends_s) > 1 else self.now_s

    def _settle(self, arrival_s: float | int) -> None:
        """An arrival disturbs the stretch: the steps that start before it are done, the others never happen."""
        if self._stretch is not None and self.now_s < arrival_s:
            self._advance(
                self._stretch, min(len(self._stretch.ends_s), 1 + bisect_left(self._stretch.ends_s, arrival_s))
            )
        self._stretch = None

    def _advance(self, stretch: _Stretch, num_steps: int) -> None:
        """Do the stretch's first steps."""
        wants_details = self.observer.wants_details
        ends_s = stretch.ends_s[:num_steps]
        note_step = self._step_noter(stretch) if wants_details else None
        ended = repeat_decodes(self._scheduler, stretch.sequences, num_steps, _token_of, note_step)
        for sequence in stretch.sequences:
            progress = self._progress[sequence.request.request_id]
            completion = progress.completions[sequence.index]
            completion.num_tokens += num_steps
            completion.last_token_s = ends_s[-1]
            if wants_details and sequence.index == 0:
                progress.token_times_s += ends_s
        self.observer.note_gaps(stretch.costs_s[:num_steps], len(stretch.sequences))
        self._num_steps += num_steps
        self._num_tokens += num_steps * len(stretch.sequences)
        num_tokens = self._num_tokens - len(stretch.sequences)  # before the last of these steps
        self._busy_s += ends_s[-1] - self.now_s
        self.now_s = ends_s[-1]
        self._stretch = None
        self._num_just_ended = 0
        for sequence in ended:
            progress = self._progress[sequence.request.request_id]
            progress.completions[sequence.index].finish_reason = "length"
            self._note_end(progress)
        self._num_tokens_just_gone = num_tokens - self._num_tokens
        self._is_undisturbed = self._is_undisturbed and not ended

    def _step_noter(self, stretch: _Stretch) -> Callable[[int], None]:
        """Tells the observer of a stretch's steps, one by one."""
        sequences = stretch.sequences
        chunks = [(s.request.request_id, s.index, s.num_computed_tokens) for s in sequences]
        plan = StepPlan((), len(chunks), len(chunks))

        def note_step(step: int) -> None:
            start_s = stretch.ends_s[step - 1] if step else self.now_s
            cost = StepCost(stretch.schedule_s, float(stretch.run_s[step]), stretch.update_s)
            done = tuple((request_id, index, start + step, 1) for request_id, index, start in chunks)
            ended = [s for s in sequences if s.status is SequenceStatus.FINISHED]
            finished = tuple((s.request.request_id, s.index) for s in ended)
            num_pending = sum(
                start + step + 1 - s.table.num_tokens
                for s, (_, _, start) in zip(sequences, chunks, strict=True)
                if s.table is not None
            )
            self._note_step(self._num_steps + step, start_s, cost, done, plan, (), finished, num_pending)

        return note_step


def _token_of(sequence: SchedulerSequence) -> int:
    """What a sequence samples: negative, so no stop token and in no prompt, and no other request's."""
    return -1 - (sequence.arrival_order * MAX_COMPLETIONS + sequence.index)


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What an engine would have noted; ready for `twophase_tools.load`.

    Attributes:
        records: What became of each request, in the order of their arrivals.
        steps: A line per step.
    """

    records: tuple[RequestRecord, ...]
    steps: tuple[StepTrace, ...]


def simulate(
    requests: Iterable[Request], scheduler: Scheduler, cost_model: CostModel, *, fast_forward: bool = True
) -> SimulationResult:
    """Serve `requests`, in the order of their arrivals, on one simulated engine; keeps everything.

    Raises:
        InvalidRequestError: An arrival that is negative, not finite or earlier than the one before; or a request that
            the scheduler refuses.
        SimulationStuckError, PolicyError: The scheduler plans nothing while requests are unfinished, or nonsense.
    """
    recorder = Recorder()
    replica = Replica(scheduler, cost_model, recorder, fast_forward=fast_forward)
    for request in in_order(requests):
        replica.run_until(request.arrival_s)
        replica.submit(request)
    replica.run_until(math.inf)
    records = sorted(recorder.records, key=lambda record: record.arrival_s)
    return SimulationResult(tuple(records), tuple(recorder.steps))


def in_order(requests: Iterable[Request]) -> Iterator[Request]:
    """The same requests, checked as they pass.

    Raises:
        InvalidRequestError: An arrival that is negative, not finite or earlier than the one before.
    """
    latest_s: float | int = 0.0
    for request in requests:
        if not latest_s <= request.arrival_s < math.inf:
            raise InvalidRequestError(
                f"request {request.request_id!r} arrives at {request.arrival_s} s; arrivals must be finite, at least 0 "
                f"and in order, and the one before was at {latest_s} s. Sort the requests by arrival_s."
            )
        latest_s = request.arrival_s
        yield request
