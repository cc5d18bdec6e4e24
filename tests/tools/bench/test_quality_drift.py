"""Means over a text with their margins, and how two models' predictions differ over it."""

import math

import numpy as np
import pytest
import torch

from tests.mutation import KillTable, Mutant
from twophase import LLM
from twophase_tools.bench import quality_drift
from twophase_tools.bench.perplexity import step_logits


def check_estimate(module) -> None:
    values = torch.tensor(np.random.default_rng(0).normal(3.0, 1.0, 1000)).double()
    means = values[:960].numpy().reshape(15, 64).mean(1)
    found = module.estimate(values)
    assert found.mean == pytest.approx(float(values.mean()))
    assert found.margin == pytest.approx(1.96 * means.std(ddof=1) / math.sqrt(15))
    values[700] = math.nan
    assert module.estimate(values) == module.Estimate(math.inf, 0.0)


def check_compare(module) -> None:
    old, new = torch.randn(2, 50, 30, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(50) % 30
    rises, kl, is_same = module._compare(old, new, targets).unbind(1)
    losses = [torch.nn.functional.cross_entropy(x, targets, reduction="none").double() for x in (old, new)]
    torch.testing.assert_close(rises, losses[1] - losses[0], atol=1e-5, rtol=1e-5)
    p, q = (torch.distributions.Categorical(logits=x.double()) for x in (old, new))
    torch.testing.assert_close(kl, torch.distributions.kl_divergence(p, q), atol=1e-5, rtol=1e-5)
    assert is_same.tolist() == [float(a == b) for a, b in zip(old.argmax(1), new.argmax(1), strict=True)]


def check_drift_between(module) -> None:
    """However the text is cut into steps; the last row predicts nothing that is known."""
    old, new = torch.randn(2, 301, 30, generator=torch.Generator().manual_seed(2))
    token_ids = [7 * i % 30 for i in range(301)]
    rises, kl, is_same = module._compare(old[:-1], new[:-1], torch.tensor(token_ids[1:])).unbind(1)
    for step in (301, 300, 64):
        found = module.drift_between(old.split(step), new.split(step), token_ids)
        assert found.log_ratio.mean == pytest.approx(float(rises.mean()))
        assert (found.kl, found.top1) == (module.estimate(kl), module.estimate(is_same))


CHECKS = (check_estimate, check_compare, check_drift_between)


@pytest.mark.parametrize("check", CHECKS)
def test_the_arithmetic(check):
    check(quality_drift)


# name, old, new
MUTANTS = [
    ("divergence the wrong way round", "kl = (old.exp() * (old - new)).sum(-1)", "kl = (new.exp() * (new - old)).sum(-1)"),
    ("losses of the wrong model", "rise = (old - new).gather", "rise = (new - old).gather"),
    ("positions taken for independent", "margin = Z95 * float(stretches.std()) / math.sqrt(len(stretches))", "margin = Z95 * float(values.std()) / math.sqrt(len(values))"),
    ("NaN passes", "if math.isfinite(mean + margin) else", "if True else"),
    ("each step predicts the first tokens", "start += old_logits.shape[0]", "start += 0"),
    ("a token predicts itself", "targets = torch.tensor(token_ids[1:])", "targets = torch.tensor(token_ids[:-1])"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(
    "mutant", [Mutant(n, quality_drift.__name__, *row) for n, *row in MUTANTS], ids=lambda m: m.name
)
def test_mutants_are_killed(mutant):
    KillTable.record(mutant, lambda module: [check(module) for check in CHECKS])


def tiny_llm(folder, kv_cache_dtype="auto") -> LLM:
    limits = {"num_kv_blocks": 256, "max_num_seqs": 8, "max_num_batched_tokens": 48, "block_size": 4}
    return LLM(folder, device="cpu", attention_backend="torch", kv_cache_dtype=kv_cache_dtype, **limits)


TEXT = [3 + 7 * i * i % 120 for i in range(250)]


def test_drift_is_that_of_the_logits(tiny_folder):
    before, after = tiny_llm(tiny_folder), tiny_llm(tiny_folder, "bfloat16")
    old, new = (torch.cat(list(step_logits(llm, TEXT)))[:-1].double() for llm in (before, after))
    drift = quality_drift.measure_drift(before, after, TEXT)
    p, q = (torch.distributions.Categorical(logits=x) for x in (old, new))
    assert drift.kl.mean == pytest.approx(float(torch.distributions.kl_divergence(p, q).mean()), rel=0.05)
    targets = torch.tensor(TEXT[1:])
    assert drift.log_ratio.mean == pytest.approx(float((p.log_prob(targets) - q.log_prob(targets)).mean()), abs=1e-6)
    assert drift.top1.mean == pytest.approx(float((old.argmax(1) == new.argmax(1)).double().mean()))
