"""Each line of the gate passes and fails alone."""

import math
from dataclasses import fields

import pytest

from tests.mutation import KillTable, Mutant
from twophase_tools.bench import quality_verdict
from twophase_tools.bench.quality_drift import Drift, Estimate
from twophase_tools.bench.quality_probes import Outcome

T, F = True, False


def drift_of(log_ratio=(0.0, 0.0), kl=(0.0, 0.0), top1=(1.0, 0.0)):
    return Drift(*(Estimate(*map(float, each)) for each in (log_ratio, kl, top1)))


def check_drift_verdicts(module) -> None:
    """Each line passes and fails by its confidence limit on the bad side."""
    cases = [
        ({}, (T, T, T)),
        ({"log_ratio": (math.log(1.019), 0.0)}, (T, T, T)),
        ({"log_ratio": (math.log(1.019), 0.01)}, (F, T, T)),
        ({"log_ratio": (-0.5, 0.0)}, (T, T, T)),
        ({"kl": (0.019, 0.0005)}, (T, T, T)),
        ({"kl": (0.019, 0.002)}, (T, F, T)),
        ({"top1": (0.96, 0.005)}, (T, T, T)),
        ({"top1": (0.96, 0.02)}, (T, T, F)),
        ({"log_ratio": (math.inf, 0), "kl": (math.inf, 0)}, (F, F, T)),
    ]
    for drift, passed in cases:
        verdicts = list(module.drift_verdicts(drift_of(**drift), module.Bounds()))
        assert tuple(verdict.passed for verdict in verdicts) == passed, drift


def outcomes_of(tasks) -> tuple[Outcome, ...]:
    """Of what is right or wrong; of leads, negative where the wrong one leads; of what was said."""
    kinds = {
        bool: Outcome,
        float: lambda lead: Outcome(lead > 0, abs(lead)),
        str: lambda said: Outcome(True, said=said),
    }
    return tuple(kinds[type(task)](task) for task in tasks)


def passes(num_passed, num_tasks=20) -> tuple[bool, ...]:
    return (True,) * num_passed + (False,) * (num_tasks - num_passed)


def check_answer_verdicts(module) -> None:
    cases = [
        (passes(20), passes(20), T),
        (passes(20), passes(18), T),
        (passes(20), passes(17), F),
        (passes(8, 8), passes(7, 8), F),
        # Of ten that were right one is lost; what is right only afterwards makes up for nothing.
        (passes(10), (F, *passes(19, 19)), T),
        (passes(10), (F, F, *passes(18, 18)), F),
        # Below half nothing is proved.
        (passes(10), passes(0), F),
        (passes(9), passes(0), None),
        (passes(0), passes(0), None),
        # What was a close call may fall either way; what was clear is kept as long as it is right at all.
        ((2.0, 0.9, 0.1, 1.0), (0.1, -0.1, -3.0, 0.1), T),
        ((2.0, 0.9, 0.1, 1.0), (0.1, 2.0, 3.0, 0.0), F),
        ((0.9, 0.9), (-1.0, -1.0), None),
        # Where the answer from before is the right one.
        (("a", "b"), ("a", "b"), T),
        (("a", "b"), ("a", "c"), F),
        (("a", "b"), ("a", F), F),
    ]
    for before, after, passed in cases:
        answers = ({"sums": outcomes_of(tasks)} for tasks in (before, after))
        (verdict,) = module.answer_verdicts(*answers, module.Bounds())
        assert (verdict.name, verdict.passed) == ("sums", passed), (before, after)


CHECKS = (check_drift_verdicts, check_answer_verdicts)


@pytest.mark.parametrize("check", CHECKS)
def test_the_arithmetic(check):
    check(quality_verdict)


# name, old, new
MUTANTS = [
    ("the margin is forgotten", "worst, limit = kl.mean + kl.margin, bounds.mean_kl", "worst, limit = kl.mean, bounds.mean_kl"),
    ("the good side of the interval counts", "worst, limit = top1.mean - top1.margin", "worst, limit = top1.mean + top1.margin"),
    ("the mean ratio counts", 'Verdict("perplexity", high, limit, high <= limit, text', 'Verdict("perplexity", high, limit, ratio <= limit, text'),
    ("judged by what it never could", "kept >= limit if tells else None", "kept >= limit"),
    ("judged by close calls alone", " and len(clear) > 0", ""),
    ("found makes up for lost", "kept = 1 - num_lost / max(1, len(clear))", "kept = num_new / max(1, num_old)"),
    ("kept of all tasks", "1 - num_lost / max(1, len(clear))", "1 - num_lost / len(old)"),
    ("close calls count", "if was.is_clear]", "if was.passed]"),
    ("what was clear must stay clear", "not was.is_kept(now) for", "not (was.is_kept(now) and now.is_clear) for"),
    ("another answer is as good", "not was.is_kept(now) for", "not now.passed for"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(
    "mutant", [Mutant(n, quality_verdict.__name__, *row) for n, *row in MUTANTS], ids=lambda m: m.name
)
def test_mutants_are_killed(mutant):
    KillTable.record(mutant, lambda module: [check(module) for check in CHECKS])


def test_four_bits_may_drift_further_and_lose_no_more_answers():
    eight, four = quality_verdict.Bounds(), quality_verdict.FOUR_BITS
    differ = {field.name for field in fields(eight) if getattr(eight, field.name) != getattr(four, field.name)}
    assert differ == {"perplexity_ratio", "mean_kl", "top1_agreement"}
    # Published for Llama 3 8B by llama.cpp: Q4_K_M keeps these bounds, plain rounding in groups of 32 (Q4_0) does not.
    q4_k_m = drift_of((math.log(1.02816), 0.0014), (0.031273, 0.00048), (0.91901, 0.0014))
    q4_0 = drift_of((math.log(6.700147 / 6.233160), 0.0014), (0.07194, 0.00098))
    assert [each.passed for each in quality_verdict.drift_verdicts(q4_k_m, four)] == [True, True, True]
    assert [each.passed for each in quality_verdict.drift_verdicts(q4_k_m, eight)] == [False, False, False]
    assert [each.passed for each in quality_verdict.drift_verdicts(q4_0, four)][:2] == [False, False]
