"""Plays requests through a scheduler with a fake model, and checks everything that can be checked after each step.

The model is a pure function of all tokens so far, so each request's output alone is known without any scheduler.
"""

from collections import defaultdict
from types import ModuleType
from typing import ClassVar

import twophase.scheduling.scheduler
from tests.cache.plain import typed_cache
from tests.cache.shadow import ShadowKV, check_findable, check_kept, check_live_tables, num_reserved
from twophase.cache.manager import CacheManager
from twophase.core.plan import SampledToken, StepPlan
from twophase.core.request import Request, SamplingParams
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.policy import Policy, PriorityPolicy
from twophase_features.offloading.host_memory import HostMemoryTier
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.policies.fair_shares import FairPolicy
from twophase_features.policies.round_robin import RotatingPolicy
from twophase_features.policies.whole_prompts import ContinuousPolicy
from twophase_features.speculation.room import with_drafts, with_room
from twophase_features.windows.sliding_window import FREED, SlidingWindow

DECODES_NEVER_WAIT = (
    PriorityPolicy,
    ChunkedPrefillPolicy,
    ContinuousPolicy,
    DeadlinePolicy,
    RotatingPolicy,
    FairPolicy,
)
VOCAB_SIZE = 17
EOS = 0


def next_token(token_ids, index: int, vocab_size: int = VOCAB_SIZE) -> int:
    """What the fake model says after these tokens, in completion `index`."""
    return hash((index, *token_ids)) % vocab_size


def outputs_alone(request: Request, max_model_len: int) -> list[tuple[tuple[int, ...], str]]:
    """(output tokens, finish reason) of each completion, by the rules for stopping and nothing else."""
    params = request.sampling_params
    outputs = []
    for index in range(params.n):
        tokens = list(request.prompt_token_ids)
        reason = None
        while reason is None:
            tokens.append(next_token(tokens, index))
            is_eos = tokens[-1] in request.eos_token_ids and not params.ignore_eos
            if is_eos or tokens[-1] in params.stop_token_ids:
                reason = "stop"
            elif len(tokens) - len(request.prompt_token_ids) == params.max_tokens or len(tokens) == max_model_len:
                reason = "length"
        outputs.append((tuple(tokens[len(request.prompt_token_ids) :]), reason))
    return outputs


def make_request(
    request_id: str,
    prompt,
    max_tokens: int = 4,
    *,
    priority=0,
    salt="",
    arrival_s=0.0,
    ttft_slo_s=None,
    tenant="",
    eos=(),
    **params,
):
    """A request; `prompt` is its tokens, or how many (then they are all its own)."""
    if isinstance(prompt, int):
        base = 1000 * (1 + sum(map(ord, request_id)))
        prompt = range(base, base + prompt)
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling_params=SamplingParams(max_tokens=max_tokens, **params),
        arrival_s=arrival_s,
        eos_token_ids=frozenset(eos),
        priority=priority,
        cache_salt=salt,
        ttft_slo_s=ttft_slo_s,
        tenant=tenant,
    )


class Harness:
    """One scheduler, its cache and shadow pages, the log, and what each completion has produced.

    `log` has a (step, name, tokens) for each chunk, in batch order; name is the request id, with /index behind it from
    the second completion on. `module` is where the Scheduler comes from: the real one, or a mutant.
    """

    module: ClassVar[ModuleType] = twophase.scheduling.scheduler

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 4,
        budget: int = 8,
        max_model_len: int = 64,
        chunked: bool = True,
        prefix_caching: bool = True,
        policy: Policy | None = None,
        cache: CacheManager | None = None,
        window: SlidingWindow | None = None,
        step_s: float = 1.0,
        max_drafts: int = 0,
        sees_all: tuple[bool, ...] = (False,),
        num_host_blocks: int = 0,
        **limits,
    ) -> None:
        self.config = SchedulerConfig(max_num_seqs, budget, max_model_len, chunked, **limits)
        windowed = {} if window is None else {"window": window, "sees_all": sees_all}
        tier = HostMemoryTier(num_host_blocks) if num_host_blocks else None
        self.cache = cache or typed_cache(num_blocks, block_size, prefix_caching, tier=tier, **windowed)
        self.window, self.sees_all = window, sees_all
        self.shadow = ShadowKV(block_size, window, sees_all)
        self.scheduler = self.module.Scheduler(self.config, self.cache, policy)
        self.scheduler.connect(self.shadow)
        self.step_no = 0
        self.now_s = 0.0
        self.step_s = step_s
        self.num_loaded = self.num_offloaded = self.num_freed = 0
        self.log: list[tuple[int, str, int]] = []
        self.preempted: list[tuple[int, str]] = []
        self.num_copies = 0
        self.max_drafts = max_drafts
        self.num_drafts = self.num_accepted = 0
        self.requests: dict[str, Request] = {}
        self.outputs: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.ends: dict[tuple[str, int], tuple] = {}

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)
            self.requests[request.request_id] = request

    def schedule(self) -> StepPlan:
        """Plan, and check the plan."""
        plan = self.scheduler.schedule(self.now_s)
        if self.max_drafts:
            plan = with_room(plan, self.scheduler, self.max_drafts)
            self.check_plan(plan)
            plan = with_drafts(plan, self.scheduler, self.draft(plan))
        self.check_plan(plan)
        for seq_id in plan.preempted:
            self.preempted.append((self.step_no, self.name(seq_id)))
        return plan

    def draft(self, plan: StepPlan) -> dict[int, list[int]]:
        """Guesses for the decodes with room for them: some right, some wrong, some fewer than there is room for."""
        drafts = {}
        for chunk in plan.chunks:
            sequence = self.scheduler.sequences[chunk.seq_id]
            tokens = list(sequence.token_ids)
            chance = hash((self.step_no, chunk.seq_id))
            for i in range(chunk.num_drafts - chance % 2):
                right = next_token(tokens, sequence.index)
                tokens.append(right if chance >> i & 3 else (right + 1) % VOCAB_SIZE)
            drafts[chunk.seq_id] = tokens[len(sequence.token_ids) :]
        return drafts

    def execute(self, plan: StepPlan) -> dict[int, list[SampledToken]]:
        """Do what the runner does: writes and reads of pages, then sampling."""
        sequences = self.scheduler.sequences
        drafts = {chunk.seq_id: list(chunk.draft_ids) for chunk in plan.chunks}
        self.shadow.run(
            plan, lambda i: [*sequences[i].token_ids, *drafts[i]], lambda i: sequences[i].request.cache_salt
        )  # raises StaleKVError
        sampled = {}
        for chunk in plan.chunks:
            sequence = sequences[chunk.seq_id]
            if chunk.num_drafts:
                sampled[chunk.seq_id] = self.verify(chunk, sequence)
                continue
            tokens = sequence.token_ids[: chunk.start + len(chunk.token_ids)]
            indices = range(sequence.index, sequence.index + chunk.num_samples)
            sampled[chunk.seq_id] = [SampledToken(next_token(tokens, index)) for index in indices]
        return sampled

    def verify(self, chunk, sequence) -> list[SampledToken]:
        """The drafts that are what the model says, and what it says where the first one is not."""
        run: list[SampledToken] = []
        for draft in (*chunk.draft_ids, None):
            said = [token.token_id for token in run]
            run.append(SampledToken(next_token([*sequence.token_ids, *said], sequence.index)))
            if run[-1].token_id != draft:
                break
        self.num_drafts += chunk.num_drafts
        self.num_accepted += len(run) - 1
        return run

    def step(self) -> StepPlan:
        plan = self.schedule()
        if plan.wake_s is not None:
            assert plan.wake_s > self.now_s
            self.now_s = min(plan.wake_s, self.now_s + self.step_s)
            return plan
        sampled = self.execute(plan)
        self.now_s += self.step_s
        self.num_copies += len(plan.copies)
        self.num_offloaded += plan.num_offloaded
        self.num_loaded += len(plan.loaded)
        for chunk in plan.chunks:
            self.log.append((self.step_no, self.name(chunk.seq_id), len(chunk.token_ids)))
        self.take(self.scheduler.update(plan, sampled))
        self.step_no += 1
        self.check_state()
        decoding = (s for s in self.scheduler.sequences.values() if s.table is not None and s.is_decoding)
        assert all(s.table.num_tokens <= len(s.token_ids) for s in decoding), "room for drafts is kept"
        return plan

    def run(self, max_steps: int = 2000) -> "Harness":
        """Step until nothing is unfinished; then nothing may be held."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished:
                break
            self.step()
        assert not self.scheduler.has_unfinished, f"not done after {max_steps} steps"
        assert self.cache.stats().num_in_use == 0, "blocks leaked"
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        return self

    def take(self, updates) -> None:
        for update in updates:
            key = (update.request_id, update.index)
            assert key not in self.ends, f"{key} goes on after its end"
            self.outputs[key] += [token.token_id for token in update.tokens]
            if update.finish_reason is not None:
                self.ends[key] = (update.finish_reason, update.stop_reason)

    def name(self, seq_id: int) -> str:
        sequence = self.scheduler.sequences[seq_id]
        return sequence.request.request_id + (f"/{sequence.index}" if sequence.index else "")

    def check_plan(self, plan: StepPlan) -> None:
        sequences = self.scheduler.sequences
        lengths = [len(chunk.token_ids) for chunk in plan.chunks]
        ids = [chunk.seq_id for chunk in plan.chunks]
        assert not (plan.is_empty and sequences and plan.wake_s is None), "nothing runs, though something is unfinished"
        assert sum(lengths) == plan.num_tokens <= self.config.max_num_batched_tokens, f"over budget: {plan}"
        assert min(lengths, default=1) > 0
        assert len(set(ids)) == len(ids), f"a sequence twice: {ids}"
        decoding = {i for i, sequence in sequences.items() if sequence.table is not None and sequence.is_decoding}
        assert all(length == 1 for length in lengths[: plan.num_decodes])
        # Those that decode behind them were just let in, with all but one token found in the cache.
        if isinstance(self.scheduler.policy, DECODES_NEVER_WAIT):
            num_first = plan.num_decodes + plan.num_verifying
            assert set(ids[:num_first]) == decoding - set(ids[num_first:]) - set(plan.failed), (
                "decodes come first, and all of them"
            )
        for chunk, length in zip(plan.chunks, lengths, strict=True):
            sequence = sequences[chunk.seq_id]
            assert chunk.start == sequence.num_computed_tokens
            is_last = chunk.start + length - len(chunk.draft_ids if length > 1 else ()) == len(sequence.token_ids)
            assert chunk.num_samples == (sequence.num_completions if is_last else 0), f"samples of {chunk}"

    def check_state(self) -> None:
        scheduler, sequences = self.scheduler, self.scheduler.sequences.values()
        running = [sequence for sequence in sequences if sequence.status.value == "running"]
        assert scheduler.num_running == len(running)
        assert scheduler.num_running + scheduler.num_waiting == len(sequences)
        assert all((sequence.table is not None) == (sequence in running) for sequence in sequences)
        for sequence in sequences:
            if sequence.table is None:
                assert sequence.status.value == ("preempted" if sequence.num_preemptions else "waiting")
                assert sequence.num_computed_tokens == 0
        assert sum(sequence.num_completions for sequence in running) <= self.config.max_num_seqs, (
            "too many places taken"
        )
        assert all(sequence.num_computed_tokens < len(sequence.token_ids) for sequence in sequences)
        check_live_tables(self.cache, [sequence.table for sequence in running])
        check_findable(self.cache, self.shadow)
        for sequence in running:
            self.num_freed += sequence.table.block_ids.count(FREED) > 0
            check_kept(sequence.table, self.cache.block_size, sequence.num_computed_tokens, self.window, self.sees_all)
        if self.window is not None:
            self.check_reservations([sequence for sequence in running if not sequence.is_decoding])

    def check_reservations(self, prefills) -> None:
        """A prefill, once begun, needs no block that another sequence could take."""
        num_free = self.cache._pool.num_free
        reserved = [
            num_reserved(self.cache, s.table, max(len(s.token_ids), s.table.num_tokens), self.window, self.sees_all)
            for s in prefills
        ]
        assert 0 <= self.cache.num_free_blocks <= num_free - sum(reserved), f"{reserved} reserved of {num_free}"

    def check_outputs(self, *, but: frozenset[str] = frozenset()) -> None:
        """Every completion is what it would be alone; those of the requests in `but`, cut short, are a part of it."""
        for request_id, request in self.requests.items():
            for index, (alone, reason) in enumerate(outputs_alone(request, self.config.max_model_len)):
                key = (request_id, index)
                tokens = tuple(self.outputs[key])
                if request_id in but:
                    assert tokens == alone[: len(tokens)], f"{key}: {tokens}, alone {alone}"
                else:
                    assert tokens == alone, f"{key}: {tokens}, alone {alone}"
                    assert self.ends[key][0] == reason, f"{key} ended by {self.ends[key]}, alone by {reason}"
