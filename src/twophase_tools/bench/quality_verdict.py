"""What a quantised cache or quantised weights may cost: a bound for each line of the gate.

One line beyond its bound fails the gate. Those of a cache and of weights in 8 bits (`Bounds()`):

    perplexity ratio   1.02   0.1 on LLaMA-7B's 5.68 (WikiText-2), which KVQuant (arXiv:2401.18079) and those after it
                              count as no loss worth having
    mean KL, nats      0.02   by Pinsker's inequality total variation is then at most sqrt(0.02 / 2) = 0.1: of ten
                              tokens drawn with the same random numbers, nine or more are the same
    top-1 agreement    0.95   a greedy output parts from its former self at most once in twenty tokens
    answers kept       0.9    of the tasks of each kind that were clearly right before: facts found in a long text, JSON
                              answers that are valid, fields of these that are as before, sums. SmolLM2 loses one
                              needle of 16 with a bfloat16 cache, which nobody counts as a loss, to a tie between two
                              numbers

Weights in 4 bits cost something, and are worth it where memory is short. Their predictions may drift as far as those
of the 4-bit format that llama.cpp calls recommended (its discussion 2094), Q4_K_M, do on Llama 3 8B by its own
measurement (examples/perplexity/README.md): perplexity x 1.028, mean KL 0.031, same top token 91.9 %. Each is rounded
to the lenient side: `FOUR_BITS`. The same two sources have Q4_0 and Q4_1, plain rounding in groups of 32, at x 1.07 and
0.072, and call their loss very high and substantial; and Q8_0 at x 1.0004, 0.0014 and 97.7 %, well within `Bounds()`,
so that 8 bits need no allowance. Answers may be lost no more than elsewhere: whoever asks does not see what was saved.

Of means over a text, their 95 % confidence limit on the bad side must keep the bound.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from twophase_tools.bench.quality_drift import Drift
from twophase_tools.bench.quality_probes import Outcome


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be lost; the reasons stand at the top of this module."""

    perplexity_ratio: int | float = 1.02
    mean_kl: int | float = 0.02
    top1_agreement: int | float = 0.95
    answers_kept: int | float = 0.9


FOUR_BITS = Bounds(perplexity_ratio=1.03, mean_kl=0.035, top1_agreement=0.915)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the gate.

    Attributes:
        value: What is compared with the bound: for an estimate, its confidence limit on the bad side.
        passed: None where the unquantised model does too badly itself for the line to tell anything.
        text: What was measured, and the bound.
    """

    name: str
    value: int | float
    bound: int | float
    passed: bool | None
    text: str


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


def answer_verdicts(
    before: Mapping[str, Sequence[Outcome]], after: Mapping[str, Sequence[Outcome]], bounds: Bounds
) -> Iterator[Verdict]:
    """A line for each kind of task; where the unquantised model fails at half of them, it proves nothing. What is right
    only afterwards makes up for nothing."""
    limit = bounds.answers_kept
    for name, old in before.items():
        num_old, num_new = (sum(outcome.passed for outcome in outcomes) for outcomes in (old, after[name]))
        clear = [(was, now) for was, now in zip(old, after[name], strict=True) if was.is_clear]
        num_lost = sum(not was.is_kept(now) for was, now in clear)
        kept = 1 - num_lost / max(1, len(clear))
        tells = 2 * num_old >= len(old) and len(clear) > 0
        text = (
            f"{num_new} of {len(old)}, before {num_old}; {num_lost} of {len(clear)} clear ones lost, "
            f"at least {limit:.0%} kept"
        )
        yield Verdict(name, kept, limit, kept >= limit if tells else None, text)
