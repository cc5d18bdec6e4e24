"""`twophase bench prefix-caching`: what finding prompts in the cache saves, when it saves nothing, and whom it tells.

Three parts, all in one process; whatever is timed over and over runs in turns, and medians are reported:

    a shared system prompt   TTFT when nothing, the system prompt, or all of a prompt is in the cache; blocks in use
                             with several users at once
    nothing shared           what looking up, hashing and publishing cost when no prompt is like another
    a stranger with a clock  see `prefix_attack`
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

from twophase.core.errors import ConfigError
from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase_tools.bench.machine import MachineRecord, record_machine
from twophase_tools.bench.prefix_attack import AttackResult, AttackShape, Clock, first_token, random_ids, run_attacks


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens and numbers of all parts.

    Attributes:
        system_len, question_len: Tokens that all users share, and tokens of each user's own; whole blocks together, so
            that the whole prompt can be found.
        num_users, output_len: Users at once, after one more before them, and what each is answered; long enough that
            the last user's prompt is computed before the first one's answer ends.
        num_prompts, prompt_len: Of the part in which nothing is shared.
    """

    system_len: int = 480
    question_len: int = 32
    num_users: int = 7
    output_len: int = 16
    num_prompts: int = 4
    prompt_len: int = 256
    attack: AttackShape = field(default_factory=AttackShape)

    @property
    def num_kv_blocks(self) -> int:
        """Room for every user's prompt without sharing, at 16 tokens a block."""
        return (self.num_users + 1) * (2 + (self.system_len + self.question_len + self.output_len) // 16)


QUICK = Shape(32, 16, 3, 4, 2, 48, AttackShape(known_len=16, secret_len=16, num_candidates=3, num_trials=2))


@dataclass(frozen=True, slots=True)
class HitTimes:
    """Median TTFT by what of the prompt is in the cache: nothing, the system prompt, or all.

    Attributes:
        partial_ratio, full_ratio: Share of the cold TTFT that is left.
        num_cached_partial, num_cached_full: Prompt tokens that were found.
    """

    cold_s: int | float
    partial_s: int | float
    full_s: int | float
    partial_ratio: int | float
    full_ratio: int | float
    num_cached_partial: int
    num_cached_full: int

    def to_line(self) -> str:
        partial, full = (
            f"{each_s * 1e3:>8.1f} ms {ratio:>6.3f}x {f'({num_cached:,} found)':>14}"
            for each_s, ratio, num_cached in (
                (self.partial_s, self.partial_ratio, self.num_cached_partial),
                (self.full_s, self.full_ratio, self.num_cached_full),
            )
        )
        return f"  {self.cold_s * 1e3:>8.1f} ms  {partial}  {full}"


@dataclass(frozen=True, slots=True)
class Sharing:
    """Several users of one system prompt at once; somebody used it before.

    Attributes:
        num_queried_tokens, num_hit_tokens, hit_rate: Prompt tokens, those found in the cache, and their share.
        peak_blocks, peak_blocks_before: Most blocks in use after a step, with prefix caching and without.
        blocks_ratio: The former over the latter.
        time_ratio: Time until all are answered, with prefix caching over without; one run of each.
    """

    num_users: int
    num_queried_tokens: int
    num_hit_tokens: int
    hit_rate: float
    peak_blocks: int
    peak_blocks_before: int
    blocks_ratio: float
    time_ratio: int | float

    def to_line(self) -> str:
        return (
            f"  {self.num_users} users at once: {self.hit_rate:.1%} of {self.num_queried_tokens:,} prompt tokens "
            f"found, {self.peak_blocks} blocks in use instead of {self.peak_blocks_before} ({self.blocks_ratio:.2f}x), "
            f"all answered in {self.time_ratio:.2f}x the time"
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """Prompts that share nothing, with prefix caching over without it; medians.

    Attributes:
        time_ratio: Of the whole run. The difference is far below a machine's noise, hence the two others.
        scheduling_ratio: Of the engine's work before and after the model: planning, lookups, blocks, publishing.
        share: By how much that work grew, as a share of the run's time without prefix caching.
    """

    num_prompts: int
    num_hit_tokens: int
    time_ratio: int | float
    scheduling_ratio: int | float
    share: int | float

    def to_line(self) -> str:
        return (
            f"  {self.num_hit_tokens} tokens found; {self.time_ratio:.3f}x the time; scheduling and bookkeeping "
            f"{self.scheduling_ratio:.2f}x, which adds {self.share:.3%} to the run"
        )


@dataclass(frozen=True, slots=True)
class PrefixCachingReport:
    """A whole run."""

    machine: MachineRecord
    model: str
    shape: Shape
    repeats: int
    hits: HitTimes
    sharing: Sharing
    cost: Cost
    attacks: tuple[AttackResult, ...]

    def to_text(self) -> str:
        return "\n".join([*self._lines(), "", self.model, self.machine.to_text()])

    def _lines(self) -> Iterator[str]:
        shape, attack = self.shape, self.shape.attack
        yield f"a shared system prompt: {shape.system_len} tokens for all, {shape.question_len} of each user's own"
        columns = f"{'system prompt known':>34}  {'all known':>34}"
        yield f"  {'TTFT, cold':>11}  {columns}   (medians of {self.repeats}, ratios to cold)"
        yield self.hits.to_line()
        yield self.sharing.to_line()
        yield ""
        yield f"nothing shared: {shape.num_prompts} prompts of {shape.prompt_len} tokens; ratios to no prefix caching"
        yield self.cost.to_line()
        yield ""
        yield (
            f"a stranger with a clock: which of {attack.num_candidates} candidates of {attack.secret_len} tokens is in "
            f"another tenant's prompt?"
        )
        yield from (result.to_line() for result in self.attacks)

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def bench_prefix_caching(
    open_llm: Callable[..., LLM],
    shape: Shape | None = None,
    *,
    repeats: int = 5,
    clock: Clock = time.perf_counter,
    say: Callable[[str], None] = lambda line: None,
) -> PrefixCachingReport:
    """Measure all parts.

    Args:
        open_llm: The model with further options of `LLM`.
        repeats: Runs of whatever is timed; the attack has its own number of trials.
        clock: In seconds.

    Raises:
        ConfigError: No repeat, or an attack that cannot be (see `run_attacks`).
    """
    if repeats < 1:
        raise ConfigError(f"--repeats must be at least 1, got {repeats}.")
    shape = shape or Shape()
    rng = random.Random(0)
    llm, without = open_llm(), open_llm(enable_prefix_caching=False)
    for each in (llm, without):
        first_token(each, random_ids(each, rng, shape.question_len))  # the first run of a process is the slowest
    say("a shared system prompt: time to first token")
    hits = measure_hits(llm, shape, repeats, rng, clock)
    say("a shared system prompt: several users")
    sharing = measure_sharing(llm, without, shape, rng, clock)
    say("nothing shared")
    cost = measure_cost(llm, without, shape, repeats, rng, clock)
    say("a stranger with a clock")
    attacks = run_attacks(llm, shape.attack, rng, clock)
    return PrefixCachingReport(record_machine(), str(llm.model_dir), shape, repeats, hits, sharing, cost, attacks)


def open_model(model: str, shape: Shape, *, device: str, dtype: str, backend: str) -> Callable[..., LLM]:
    """The `open_llm` of `bench_prefix_caching` for a model and the user's options."""

    def open_llm(**options: object) -> LLM:
        return LLM(
            model,
            device=device,
            dtype=dtype,
            attention_backend=backend,
            num_kv_blocks=shape.num_kv_blocks,
            skip_tokenizer_init=True,
            **options,  # type: ignore[arg-type]
        )

    return open_llm


def measure_hits(
    llm: LLM, shape: Shape, repeats: int, rng: random.Random, clock: Clock = time.perf_counter
) -> HitTimes:
    """TTFT of a prompt when nothing of it is known, then all; and of another that shares its system prompt."""
    rows: list[list[int | float]] = []
    for _ in range(repeats):
        system = random_ids(llm, rng, shape.system_len)
        prompt, other = ([*system, *random_ids(llm, rng, shape.question_len)] for _ in range(2))
        cold, partial, full = (first_token(llm, each, clock=clock) for each in (prompt, other, prompt))
        rows.append([cold.ttft_s, partial.ttft_s, full.ttft_s])
    cold_s, partial_s, full_s = (statistics.median(column) for column in zip(*rows, strict=True))
    num_cached = partial.num_cached_tokens, full.num_cached_tokens
    return HitTimes(cold_s, partial_s, full_s, partial_s / cold_s, full_s / cold_s, *num_cached)


def measure_sharing(
    llm: LLM, without: LLM, shape: Shape, rng: random.Random, clock: Clock = time.perf_counter
) -> Sharing:
    """Serve all users together, with prefix caching and without."""
    system = random_ids(llm, rng, shape.system_len)
    first_token(llm, system)
    prompts = [[*system, *random_ids(llm, rng, shape.question_len)] for _ in range(shape.num_users)]
    runs = [_serve(each, prompts, shape.output_len, clock) for each in (llm, without)]
    with_sharing, before = runs
    num_queried = sum(map(len, prompts))
    return Sharing(
        num_users=shape.num_users,
        num_queried_tokens=num_queried,
        num_hit_tokens=with_sharing.num_hit_tokens,
        hit_rate=with_sharing.num_hit_tokens / num_queried,
        peak_blocks=with_sharing.peak_blocks,
        peak_blocks_before=before.peak_blocks,
        blocks_ratio=with_sharing.peak_blocks / before.peak_blocks,
        time_ratio=with_sharing.elapsed_s / before.elapsed_s,
    )


def measure_cost(
    llm: LLM, without: LLM, shape: Shape, repeats: int, rng: random.Random, clock: Clock = time.perf_counter
) -> Cost:
    """Serve prompts that nobody has asked before, in turns with prefix caching and without."""
    runs: list[tuple[Served, Served]] = []
    for _ in range(repeats):
        prompts = [random_ids(llm, rng, shape.prompt_len) for _ in range(shape.num_prompts)]
        runs.append((_serve(llm, prompts, 1, clock), _serve(without, prompts, 1, clock)))
    of_llms = list(zip(*runs, strict=True))
    elapsed_s, elapsed_before_s = (statistics.median(run.elapsed_s for run in of_llm) for of_llm in of_llms)
    own_s, own_before_s = (statistics.median(run.scheduling_s for run in of_llm) for of_llm in of_llms)
    return Cost(
        num_prompts=shape.num_prompts,
        num_hit_tokens=sum(run.num_hit_tokens for run, _ in runs),
        time_ratio=elapsed_s / elapsed_before_s,
        scheduling_ratio=own_s / own_before_s,
        share=(own_s - own_before_s) / elapsed_before_s,
    )


@dataclass(frozen=True, slots=True)
class Served:
    """What serving some prompts together took.

    Attributes:
        scheduling_s: Of it the engine's own work, before and after the model, on the engine's clock.
    """

    elapsed_s: int | float
    scheduling_s: float
    peak_blocks: int
    num_hit_tokens: int


def _serve(llm: LLM, prompts: list[list[int]], output_len: int, clock: Clock) -> Served:
    num_steps_before = llm.engine.stats().num_steps
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    start_s = clock()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    elapsed_s = clock() - start_s
    steps = [step for step in llm.engine.trace if step.step >= num_steps_before]
    return Served(
        elapsed_s=elapsed_s,
        scheduling_s=sum(step.schedule_s + step.update_s for step in steps),
        peak_blocks=max(step.blocks_in_use for step in steps),
        num_hit_tokens=sum(output.metrics.num_cached_tokens for output in outputs),
    )
