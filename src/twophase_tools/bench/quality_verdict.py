"""What a quantised cache or quantised weights may cost: a bound for each line of the gate, and one for all together.

**Bounds.** One line beyond its bound fails the gate. Those of a cache and of weights in 8 bits (`Bounds()`):

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
    answers kept       0.9    of the tasks of one kind that were clearly right before: likewise

Weights in 4 bits cost something, and are worth it where memory is short. Their predictions may drift as far as those
of the 4-bit format that llama.cpp calls recommended (its discussion 2094), Q4_K_M, do on Llama 3 8B by its own
measurement (examples/perplexity/README.md): perplexity x 1.028, mean KL 0.031, same top token 91.9 %. Each is rounded
to the lenient side: `FOUR_BITS`. The same two sources have Q4_0 and Q4_1, plain rounding in groups of 32, at x 1.07 and
0.072, and call their loss very high and substantial; and Q8_0 at x 1.0004, 0.0014 and 97.7 %, well within `Bounds()`,
so that 8 bits need no allowance. Answers may be lost no more than elsewhere: whoever asks does not see what was saved.

Of means over a text, their 95 % confidence limit on the bad side must keep the bound.

**All together.** Each line has used some of what it is allowed: its loss, over the loss at its bound. 0 is nothing
lost, 1 is at the bound, more counts as 1. The gate's figure is the weighted mean over the lines that tell something,

    used = sum(weight * min(1, used of the line)) / sum(weight),

and must be at most 0.5. One line near its bound may be bad luck. If all are more than half way there, none fails, and
the model is worse all the same.

Weights are equal for each use (predictions, long texts, structured output, arithmetic, code, refusals), shared by its
lines: who knows what a model is for gives others.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from twophase.core.errors import ConfigError
from twophase.core.rules import shown
from twophase_tools.bench.quality_drift import Drift, Estimate
from twophase_tools.bench.quality_probes import Slice
from twophase_tools.bench.quality_tasks import FIELDS, Answers

WEIGHTS: Mapping[str, int] = {
    "perplexity": 2,
    "mean KL divergence": 2,
    "same top token": 2,
    "needles found": 6,
    "guided JSON valid": 2,
    "free JSON valid": 2,
    "guided JSON fields": 2,
    "one-digit sums": 3,
    "two-digit sums": 3,
    "code continued": 6,
    "refusals preferred": 2,
    "harmful refused": 2,
    "harmless answered": 2,
    "own choices": 6,
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be lost; the reasons stand at the top of this module."""

    perplexity_ratio: int | float = 1.02
    mean_kl: int | float = 0.02
    top1_agreement: int | float = 0.95
    needles_lost: int = 1
    objects_lost: int = 0
    equal_fields: int | float = 0.9
    answers_kept: int | float = 0.9
    mean_used: int | float = 0.5


FOUR_BITS = Bounds(perplexity_ratio=1.03, mean_kl=0.035, top1_agreement=0.915)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the gate.

    Attributes:
        value: What is compared with the bound: for an estimate, its confidence limit on the bad side.
        passed: None where the unquantised model does too badly itself for the line to tell anything.
        text: What was measured, and the bound.
        used: The share of what may be lost that is lost: 0 is nothing, 1 is all. Infinite where nothing may be.
        times_text: Where the confidence interval holds the bound, and the line fails because too little was read: so
            many times the text would decide, if the mean stays where it is. 0 where it is decided.
    """

    name: str
    value: int | float
    bound: int | float
    passed: bool | None
    text: str
    used: int | float = 0.0
    times_text: int | float = 0


def mean_used(verdicts: Sequence[Verdict], weights: Mapping[str, int | float] = WEIGHTS) -> float:
    """The weighted mean of what the lines that tell anything have used of their allowances, in [0, 1]."""
    telling = [(weights[each.name], min(1, each.used)) for each in verdicts if each.passed is not None]
    total = sum(weight for weight, _ in telling)
    # Weightless lines may still fail by their bounds.
    return sum(weight * used for weight, used in telling) / total if total else 0.0


def read_weights(words: Sequence[str]) -> dict[str, int | float]:
    """The weights of all lines, with those given as 'LINE=W' in place of the usual ones.

    Raises:
        ConfigError: There is no such line, or the weight is no finite number of at least 0.
    """
    weights: dict[str, int | float] = dict(WEIGHTS)
    for word in words:
        name, _, number = word.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if name not in weights or not 0 <= weight < math.inf:
            raise ConfigError(
                f"--weight must be LINE=W, a finite number of at least 0 for one of the lines {', '.join(WEIGHTS)}; "
                f"got {shown(word)}."
            )
        weights[name] = weight
    return weights


def drift_verdicts(drift: Drift, bounds: Bounds) -> Iterator[Verdict]:
    """The lines about the text."""
    log_ratio, kl, top1 = drift.log_ratio, drift.kl, drift.top1
    low, ratio, high = (math.exp(min(log_ratio.mean + side * log_ratio.margin, 700)) for side in (-1, 0, 1))
    limit = bounds.perplexity_ratio
    text = f"{ratio:.4f} [{low:.4f}, {high:.4f}] of before, at most {limit:g}"
    used = _share(log_ratio.mean + log_ratio.margin, math.log(limit) if limit > 0 else -math.inf)
    times = _times_text(log_ratio, math.log(limit)) if low <= limit < high else 0
    yield Verdict("perplexity", high, limit, high <= limit, text, used, times)
    worst, limit = kl.mean + kl.margin, bounds.mean_kl
    text = f"{kl.mean:.5f} +- {kl.margin:.5f} nats, at most {limit:g}"
    times = _times_text(kl, limit) if kl.mean - kl.margin <= limit < worst else 0
    yield Verdict("mean KL divergence", worst, limit, worst <= limit, text, _share(worst, limit), times)
    worst, limit = top1.mean - top1.margin, bounds.top1_agreement
    text = f"{top1.mean:.2%} +- {top1.margin:.2%}, at least {limit:.2%}"
    times = _times_text(top1, limit) if worst < limit <= top1.mean + top1.margin else 0
    yield Verdict("same top token", worst, limit, worst >= limit, text, _share(1 - worst, 1 - limit), times)


def _times_text(found: Estimate, limit: int | float) -> float:
    """A margin shrinks with the square root of what is read."""
    gap = abs(found.mean - limit)
    return (found.margin / gap) ** 2 if gap else math.inf


def answer_verdicts(before: Answers, after: Answers, bounds: Bounds) -> Iterator[Verdict]:
    """The lines about questions; where the unquantised model fails half of them itself, they prove nothing."""
    counts: tuple[tuple[str, Sequence[bool], Sequence[bool], int], ...] = (
        ("needles found", before.found, after.found, bounds.needles_lost),
        ("guided JSON valid", before.guided_valid, after.guided_valid, bounds.objects_lost),
        ("free JSON valid", before.free_valid, after.free_valid, bounds.objects_lost),
    )
    for name, old, new, limit in counts:
        num_lost = _num_lost(old, new)
        tells = 2 * sum(old) >= len(old)
        text = f"{sum(new)} of {len(new)}, before {sum(old)}; {num_lost} lost, at most {limit}"
        yield Verdict(name, num_lost, limit, num_lost <= limit if tells else None, text, _share(num_lost, limit))
    num_fields = len(FIELDS) * len(before.objects)
    num_equal = sum(
        field in old and field in new and old[field] == new[field]
        for old, new in zip(before.objects, after.objects, strict=True)
        for field in FIELDS
    )
    share, limit_share = num_equal / num_fields, bounds.equal_fields
    text = f"{num_equal} of {num_fields} as before, at least {limit_share:.0%}"
    used = _share(1 - share, 1 - limit_share)
    yield Verdict("guided JSON fields", share, limit_share, share >= limit_share, text, used)


def probe_verdicts(before: Mapping[str, Slice], after: Mapping[str, Slice], bounds: Bounds) -> Iterator[Verdict]:
    """A line for each slice of tasks; where the unquantised model does little better than chance, it proves nothing."""
    for name, old in before.items():
        new = after[name]
        clear = [outcome.is_clear for outcome in old.outcomes]
        num_clear, num_lost = sum(clear), _num_lost(clear, [outcome.passed for outcome in new.outcomes])
        kept, limit = 1 - num_lost / max(1, num_clear), bounds.answers_kept
        text = (
            f"{new.num_passed} of {len(new.outcomes)}, before {old.num_passed}; "
            f"{num_lost} of {num_clear} clear ones lost, at least {limit:.0%} kept"
        )
        used = _share(1 - kept, 1 - limit)
        yield Verdict(name, kept, limit, kept >= limit if old.tells else None, text, used)


def _num_lost(before: Sequence[bool], after: Sequence[bool]) -> int:
    """Right before, not right after. What is right only afterwards makes up for nothing."""
    return sum(was and not still for was, still in zip(before, after, strict=True))


def _share(lost: int | float, allowed: int | float) -> float:
    """What is lost, of what may be lost. A gain is no loss."""
    if not lost > 0:
        return 0.0
    return lost / allowed if allowed > 0 else math.inf
