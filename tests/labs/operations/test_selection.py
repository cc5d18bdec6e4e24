"""Sampling until a verifier accepts, and the figures about samples, against counting by hand."""

import itertools
import math

import numpy as np
import pytest

import twophase_labs.operations.selection as selection_module
from tests.engine.conftest import tiny_folder
from tests.mutation import KillTable, Mutant
from twophase import LLM, SamplingParams
from twophase.core.errors import InvalidRequestError
from twophase.core.request import CompletionOutput, RequestMetrics, RequestOutput

METRICS = RequestMetrics(0.0, None, None, None, (), 1, 0, 0)


class FakeLLM:
    """Draws texts of two tokens from a list, in order; notes how it was asked."""

    def __init__(self, texts) -> None:
        self.texts = iter(texts)
        self.asked = []

    def generate(self, prompts, sampling_params, use_tqdm=True):
        self.asked.append((prompts, sampling_params.n, sampling_params.seed))
        drawn = [next(self.texts) for _ in range(sampling_params.n)]
        completions = (
            CompletionOutput(i, text, (0, 1), finish_reason="stop", error="broken" if text == "x" else None)
            for i, text in enumerate(drawn)
        )
        return [RequestOutput("a", "p", (1,), tuple(completions), True, METRICS)]


def check(module) -> None:
    check_first_accepted(module)
    check_figures(module)


def check_first_accepted(module) -> None:
    seen = []

    def is_right(prompt, each):
        seen.append((prompt, each.text))
        return each.text == "yes"

    llm = FakeLLM(["no", "x", "no", "yes", "no", "no"])
    found = module.first_accepted(llm, "p", is_right, SamplingParams(seed=5), max_samples=9, round_size=3)
    assert (found.accepted.text, found.num_samples, found.num_tokens) == ("yes", 6, 12)
    assert seen == [("p", "no"), ("p", "no"), ("p", "yes")], "the broken one, and those behind, were not to be seen"
    assert llm.asked == [("p", 3, 5), ("p", 3, 6)]

    llm = FakeLLM(["no"] * 20)
    found = module.first_accepted(llm, "p", is_right, SamplingParams(), max_samples=7, round_size=3)
    assert found == module.Search(None, 7, 14)
    assert llm.asked == [("p", 3, None), ("p", 3, None), ("p", 1, None)]

    found = module.first_accepted(FakeLLM(["no"] * 20), "p", is_right, SamplingParams(), max_tokens=10, round_size=3)
    assert found == module.Search(None, 6, 12)


def check_figures(module) -> None:
    for n in range(1, 8):
        for correct in range(n + 1):
            samples = [True] * correct + [False] * (n - correct)
            for k in range(1, n + 1):
                tries = [any(chosen) for chosen in itertools.combinations(samples, k)]
                assert module.pass_at_k(n, correct, k) == pytest.approx(sum(tries) / len(tries))
    for n in (1, 10, 400):
        for correct in {0, 1, n // 3, n}:
            low, high = module.wilson_interval(correct, n)
            assert 0 <= low <= correct / n <= high <= 1
            assert low < high
            for edge in (low, high):  # the rates at which what was seen is 1.96 standard deviations off
                if 0 < edge < 1:
                    assert abs(correct / n - edge) == pytest.approx(1.96 * math.sqrt(edge * (1 - edge) / n), rel=1e-6)
    for numbers in ((0, 0, 1), (4, 5, 1), (4, 2, 5), (4, 2, 0), (4, -1, 1)):
        with pytest.raises(InvalidRequestError, match="must be a whole number"):
            module.pass_at_k(*numbers)
    for numbers in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(InvalidRequestError, match="must be a whole number"):
            module.wilson_interval(*numbers)


@pytest.mark.parametrize("part", [check_first_accepted, check_figures])
def test_by_hand(part):
    part(selection_module)


def test_the_interval_covers():
    """Of many experiments, as many intervals hold the true rate as they say, about."""
    for rate, n in ((0.1, 30), (0.5, 30), (0.95, 100)):
        drawn = np.random.default_rng(0).binomial(n, rate, 4000)
        held = [low <= rate <= high for low, high in (selection_module.wilson_interval(int(c), n) for c in drawn)]
        assert 0.92 < np.mean(held) < 0.98


def test_on_an_engine(tiny_folder):
    """A verifier that wants the rare gets it or says what it spent."""
    with LLM(tiny_folder, device="cpu", dtype="float32", num_kv_blocks=96, block_size=4, max_model_len=64) as llm:
        params = SamplingParams(seed=1, max_tokens=7, ignore_eos=True)
        found = selection_module.first_accepted(llm, "Once upon", lambda _, each: each.token_ids[0] % 2 == 0, params)
        assert found.accepted.token_ids[0] % 2 == 0
        never = selection_module.first_accepted(llm, "Once upon", lambda *_: False, params)
        assert never == selection_module.Search(None, 16, 16 * 7)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("too many samples", "min(round_size, max_samples - num_samples)", "round_size"),
        ("tokens are not counted", "num_tokens += sum", "num_tokens = sum"),
        ("tokens have no bound", "num_tokens < max_tokens", "True"),
        ("each round draws the same", "params.seed + num_rounds", "params.seed"),
        ("the broken are verified", "completion.error is None and verifier", "verifier"),
        (
            "with replacement",
            "math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)",
            "((num_samples - num_correct) / num_samples) ** k",
        ),
        ("Wald's interval", "middle = (rate + spread / 2) / (1 + spread)", "middle = rate"),
        ("half as wide", "spread * spread / 4", "spread * spread / 16"),
    ],
    ids=lambda value: value if " " in value and "(" not in value and "=" not in value and "/" not in value else "",
)
def test_mutants_are_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase_labs.operations.selection", old, new), check)
