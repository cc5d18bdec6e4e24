"""`twophase bench quality`: what a quantised K/V cache costs in quality, against the unquantised one of the same model.

A gate: each line has a bound, and one line beyond its bound fails it. The bounds, and why they are where they are:

    perplexity ratio   1.02   0.1 on LLaMA-7B's 5.68 (WikiText-2), which KVQuant (arXiv:2401.18079) and those after it
                              count as no loss worth having
    mean KL, nats      0.02   by Pinsker's inequality total variation is then at most sqrt(0.02 / 2) = 0.1: of ten
                              tokens drawn with the same random numbers, nine or more are the same
    top-1 agreement    0.95   a greedy output parts from its former self at most once in twenty tokens
    needles lost       1      of 16 that were found before: as many as SmolLM2 loses with a bfloat16 cache, which
                              nobody counts as a loss, to a tie between two numbers
    JSON objects lost  0      valid before, not valid after
    equal JSON fields  0.9    of the fields extracted before: a small model is undecided about some of them, and a tie
                              may fall either way without loss

Means over a text are estimates. What must keep the bound is their 95 % confidence limit on the bad side, from the
means of 64-token stretches, as neighbours are not independent (batch means; Law, Simulation Modeling, 9.5.3).
"""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.core.errors import ConfigError
from twophase.core.sampling_params import SamplingParams
from twophase.llm import LLM
from twophase_tools.bench.machine import MachineRecord, record_machine
from twophase_tools.bench.perplexity import prose, step_logits
from twophase_tools.bench.quality_tasks import FIELDS, Answers, answer

STRETCH = 64  # tokens whose mean counts as one independent observation
Z95 = 1.96  # normal distribution, two-sided 95 %
# Room for the prose, and for the answers to eight questions about it. Steps are short, so that two caches' logits fit.
NUM_BLOCKS, MAX_NUM_SEQS, STEP_TOKENS = 512, 16, 256
DECODE_BATCH, DECODE_CONTEXT, DECODE_STEPS, DECODE_ROUNDS = 8, 256, 6, 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a cache may cost; the reasons stand at the top of this module."""

    perplexity_ratio: int | float = 1.02
    mean_kl: int | float = 0.02
    top1_agreement: int | float = 0.95
    needles_lost: int = 1
    objects_lost: int = 0
    equal_fields: int | float = 0.9


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and half the width of its 95 % confidence interval."""

    mean: float
    margin: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the gate.

    Attributes:
        value: What is compared with the bound: for an estimate, its confidence limit on the bad side.
        passed: None where the unquantised cache does too badly itself for the line to tell anything.
        text: What was measured, and the bound.
    """

    name: str
    value: int | float
    bound: int | float
    passed: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class FormatReport:
    """One cache format against the unquantised one.

    Attributes:
        bytes_ratio: Bytes per token, before over after.
        step_time_ratio: Time of a decode step, after over before; medians of runs in turns.
    """

    kv_cache_dtype: str
    verdicts: tuple[Verdict, ...]
    bytes_per_token: int
    bytes_ratio: float
    step_time_ratio: float

    @property
    def passed(self) -> bool:
        return all(verdict.passed is not False for verdict in self.verdicts)

    def to_lines(self) -> Iterator[str]:
        yield f"{self.kv_cache_dtype}: the gate {'passes' if self.passed else 'FAILS'}"
        for verdict in self.verdicts:
            mark = {True: "pass", False: "FAIL", None: "----"}[verdict.passed]
            yield f"  {mark}  {verdict.name:<18} {verdict.text}"
        yield f"  saved   {self.bytes_ratio:.2f}x fewer bytes per token ({self.bytes_per_token:,})"
        yield f"  costs   {self.step_time_ratio:.2f}x the time of a decode step ({DECODE_BATCH} sequences)"


@dataclass(frozen=True, slots=True)
class QualityReport:
    """A whole run."""

    machine: MachineRecord
    model: str
    num_tokens: int
    bytes_per_token_before: int
    formats: tuple[FormatReport, ...]

    @property
    def passed(self) -> bool:
        return all(report.passed for report in self.formats)

    def to_text(self) -> str:
        lines = [line for report in self.formats for line in (*report.to_lines(), "")]
        about = f"{self.model}, {self.num_tokens:,} tokens of text; before: {self.bytes_per_token_before:,} bytes/token"
        return "\n".join([*lines, about, self.machine.to_text()])

    def to_dict(self) -> dict[str, object]:
        return asdict(self) | {"passed": self.passed}


@dataclass(frozen=True, slots=True)
class Drift:
    """How the next-token distributions of two caches differ over a text."""

    log_ratio: Estimate  # of the perplexities
    kl: Estimate
    top1: Estimate


def bench_quality(
    open_llm: Callable[[str], LLM],
    kv_cache_dtypes: Sequence[str],
    bounds: Bounds | None = None,
    *,
    text: str | None = None,
    num_tokens: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> QualityReport:
    """Judge each format against 'auto', the unquantised cache.

    Args:
        open_llm: The model with a cache of the given kv_cache_dtype; room for `DECODE_BATCH` sequences at least.
        text: What is read with both caches; None: the prose that comes with this package.
        num_tokens: Of the text; None takes all.

    Raises:
        ConfigError: No format, too little text to estimate anything, or more than the model or the pool can hold.
    """
    if not kv_cache_dtypes:
        raise ConfigError("--kv-cache-dtype needs at least one format to judge, such as int8.")
    if num_tokens is not None and num_tokens < 4 * STRETCH:
        raise ConfigError(f"--tokens must be at least {4 * STRETCH}, or no error can be estimated; got {num_tokens}.")
    before = open_llm("auto")
    assert before.tokenizer is not None
    token_ids = before.tokenizer.encode(prose() if text is None else text)[:num_tokens]
    most = min(before.scheduler.config.max_model_len, before.kv_cache.num_blocks * before.kv_cache.spec.block_size) - 1
    if not 4 * STRETCH <= len(token_ids) <= most:
        raise ConfigError(
            f"the text must have {4 * STRETCH} to {most:,} tokens (fewer give no estimate, more do not fit), and has "
            f"{len(token_ids):,}; --tokens takes its beginning."
        )
    say("unquantised: needles and JSON")
    answers = answer(before)
    reports = []
    for name in kv_cache_dtypes:
        after = open_llm(name)
        reports.append(judge(name, before, after, answers, token_ids, bounds or Bounds(), say))
        del after  # its weights should not stand beside the next one's
    spec = before.kv_cache.spec
    return QualityReport(record_machine(), str(before.model_dir), len(token_ids), spec.bytes_per_token, tuple(reports))


def open_model(model: str, *, device: str, dtype: str, backend: str) -> Callable[[str], LLM]:
    """The `open_llm` of `bench_quality` for a model and the user's options."""

    def open_llm(kv_cache_dtype: str) -> LLM:
        return LLM(
            model,
            device=device,
            dtype=dtype,
            attention_backend=backend,
            kv_cache_dtype=kv_cache_dtype,
            num_kv_blocks=NUM_BLOCKS,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=STEP_TOKENS,
        )

    return open_llm


def judge(
    name: str,
    before: LLM,
    after: LLM,
    answers: Answers,
    token_ids: Sequence[int],
    bounds: Bounds,
    say: Callable[[str], None] = lambda line: None,
) -> FormatReport:
    """One format; `answers` are what the unquantised cache answered."""
    say(f"{name}: {len(token_ids):,} tokens of text, with both caches")
    drift = measure_drift(before, after, token_ids)
    say(f"{name}: needles and JSON")
    verdicts = (*drift_verdicts(drift, bounds), *answer_verdicts(answers, answer(after), bounds))
    say(f"{name}: time of a decode step, in turns")
    times_s = decode_step_times(before, after, token_ids)
    bytes_before, bytes_after = (llm.kv_cache.spec.bytes_per_token for llm in (before, after))
    return FormatReport(name, verdicts, bytes_after, bytes_before / bytes_after, times_s[1] / times_s[0])


def measure_drift(before: LLM, after: LLM, token_ids: Sequence[int]) -> Drift:
    """Read the text with both caches, step by step, and compare the distributions at each position."""
    targets = torch.tensor(token_ids[1:])
    parts: list[Tensor] = []
    start = 0
    for old_logits, new_logits in zip(step_logits(before, token_ids), step_logits(after, token_ids), strict=True):
        wanted = targets[start : start + old_logits.shape[0]].to(old_logits.device)
        start += old_logits.shape[0]
        parts.append(_compare(old_logits[: len(wanted)], new_logits[: len(wanted)], wanted))
    rises, kl, is_same = torch.cat(parts).unbind(1)
    return Drift(estimate(rises), estimate(kl), estimate(is_same))


def _compare(old: Float[Tensor, "n V"], new: Float[Tensor, "n V"], targets: Tensor) -> Float[Tensor, "n 3"]:
    """Per position: rise of the loss in nats, KL(old || new) in nats, and 1 where both prefer the same token."""
    old, new = old.log_softmax(-1), new.log_softmax(-1)
    rise = (old - new).gather(1, targets[:, None]).squeeze(1)
    kl = (old.exp() * (old - new)).sum(-1)
    is_same = (old.argmax(-1) == new.argmax(-1)).to(kl.dtype)
    return torch.stack([rise, kl, is_same], dim=1).double().cpu()


def estimate(values: Float[Tensor, "n"]) -> Estimate:
    """The mean of a text's positions, with its margin by batch means; positions beyond the last stretch count too."""
    stretches = values[: len(values) // STRETCH * STRETCH].view(-1, STRETCH).mean(1)
    margin = Z95 * float(stretches.std()) / math.sqrt(len(stretches))
    # NaN anywhere is as bad as it gets, and must not look like a number that compares false.
    mean = float(values.mean())
    return Estimate(mean, margin) if math.isfinite(mean + margin) else Estimate(math.inf, 0.0)


def drift_verdicts(drift: Drift, bounds: Bounds) -> Iterator[Verdict]:
    """The lines about the text."""
    log_ratio, kl, top1 = drift.log_ratio, drift.kl, drift.top1
    low, ratio, high = (math.exp(min(log_ratio.mean + side * log_ratio.margin, 700)) for side in (-1, 0, 1))
    limit = bounds.perplexity_ratio
    text = f"{ratio:.4f} [{low:.4f}, {high:.4f}] of before, at most {limit:g}"
    yield Verdict("perplexity", high, limit, high <= limit, text)
    worst, limit = kl.mean + kl.margin, bounds.mean_kl
    text = f"{kl.mean:.5f} +- {kl.margin:.5f} nats, at most {limit:g}"
    yield Verdict("mean KL divergence", worst, limit, worst <= limit, text)
    worst, limit = top1.mean - top1.margin, bounds.top1_agreement
    text = f"{top1.mean:.2%} +- {top1.margin:.2%}, at least {limit:.2%}"
    yield Verdict("same top token", worst, limit, worst >= limit, text)


def answer_verdicts(before: Answers, after: Answers, bounds: Bounds) -> Iterator[Verdict]:
    """The lines about questions; where the unquantised cache fails half of them itself, they prove nothing."""
    counts: tuple[tuple[str, Sequence[bool], Sequence[bool], int], ...] = (
        ("needles found", before.found, after.found, bounds.needles_lost),
        ("guided JSON valid", before.guided_valid, after.guided_valid, bounds.objects_lost),
        ("free JSON valid", before.free_valid, after.free_valid, bounds.objects_lost),
    )
    for name, old, new, limit in counts:
        num_lost = sum(was and not still for was, still in zip(old, new, strict=True))
        tells = 2 * sum(old) >= len(old)
        text = f"{sum(new)} of {len(new)}, before {sum(old)}; {num_lost} lost, at most {limit}"
        yield Verdict(name, num_lost, limit, num_lost <= limit if tells else None, text)
    num_fields = len(FIELDS) * len(before.objects)
    num_equal = sum(
        field in old and field in new and old[field] == new[field]
        for old, new in zip(before.objects, after.objects, strict=True)
        for field in FIELDS
    )
    share, limit_share = num_equal / num_fields, bounds.equal_fields
    text = f"{num_equal} of {num_fields} as before, at least {limit_share:.0%}"
    yield Verdict("guided JSON fields", share, limit_share, share >= limit_share, text)


def decode_step_times(before: LLM, after: LLM, token_ids: Sequence[int]) -> tuple[float, float]:
    """Median seconds of a decode step of `DECODE_BATCH` sequences, the two caches in turns."""
    prompts = [{"prompt_token_ids": list(token_ids[i : i + DECODE_CONTEXT])} for i in range(DECODE_BATCH)]
    params = SamplingParams(temperature=0, max_tokens=DECODE_STEPS + 1, ignore_eos=True)
    times_s: tuple[list[float], list[float]] = ([], [])
    for llm in (before, after):  # the prompts into the prefix cache: from now on all sequences decode together
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    for _ in range(DECODE_ROUNDS):
        for llm, of_llm in zip((before, after), times_s, strict=True):
            llm.generate(prompts, params, use_tqdm=False)
            steps = llm.engine.trace[-DECODE_STEPS:]
            of_llm += [step.run_s for step in steps if step.num_decodes == len(step.chunks) == DECODE_BATCH]
    # A cache so broken that its requests end with errors decodes nothing.
    before_s, after_s = (statistics.median(of_llm) if of_llm else math.inf for of_llm in times_s)
    return before_s, after_s


def to_json(report: QualityReport) -> str:
    """The report as JSON; infinities, which JSON has not, as text."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(report.to_dict()), indent=2)
