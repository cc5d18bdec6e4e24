"""Choosing among samples, against counting by hand; and on a real engine, whose samples share their prompt's blocks."""

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


def completion(text: str, logprob=None, *, index=0, num_tokens=2, error=None) -> CompletionOutput:
    return CompletionOutput(
        index, text, tuple(range(num_tokens)), finish_reason="stop", error=error, cumulative_logprob=logprob
    )


def output_of(*completions) -> RequestOutput:
    return RequestOutput("a", "p", (1,), tuple(completions), True, METRICS)


def first_letter(text: str):
    return text[0] if text else None


class FakeLLM:
    """Draws texts from a list, in order; notes how it was asked."""

    def __init__(self, texts) -> None:
        self.texts = iter(texts)
        self.asked = []

    def generate(self, prompts, sampling_params, use_tqdm=True):
        self.asked.append((prompts, sampling_params.n, sampling_params.seed))
        drawn = [next(self.texts) for _ in range(sampling_params.n)]
        return [output_of(*(completion(text, error="broken" if text == "x" else None) for text in drawn))]


def check(module) -> None:
    check_best_of(module)
    check_vote(module)
    check_first_accepted(module)
    check_figures(module)


def check_best_of(module) -> None:
    short, long = completion("short", -3.0, num_tokens=2), completion("long", -4.0, num_tokens=8)
    broken = completion("broken", 0.0, error="no")
    assert module.best_of(output_of(short, long, broken), module.sum_logprob) is short
    assert module.best_of(output_of(short, long, broken), module.mean_logprob) is long
    first, second = completion("first", -1.0), completion("second", -1.0)
    assert module.best_of(output_of(first, second), module.sum_logprob) is first
    assert module.best_of(output_of(broken), module.sum_logprob) is broken
    assert module.mean_logprob(completion("", num_tokens=0)) == 0
    with pytest.raises(InvalidRequestError, match=r"needs SamplingParams\(logprobs=0\)"):
        module.best_of(output_of(completion("a")), module.mean_logprob)


def check_vote(module) -> None:
    texts = [("a1", -5.0), ("b1", -1.0), ("b2", -9.0), ("", -0.1), ("a2", -2.0), ("c", -0.5)]
    voters = output_of(*(completion(text, logprob) for text, logprob in texts), completion("c", error="no"))
    found = module.vote(voters, first_letter)
    assert (found.winner, found.completion.text, found.share) == (
        "b",
        "b1",
        2 / 5,
    )  # a has as many, and no likelier one
    assert found.weights == (("b", 2), ("a", 2), ("c", 1))
    found = module.vote(voters, first_letter, weight=lambda each: 3.0 if each.text == "c" else 0.5)
    assert (found.winner, found.share, found.weights) == ("c", 3 / 5, (("c", 3), ("b", 1), ("a", 1)))
    unknown = module.vote(output_of(*map(completion, ("b1", "a1", "a2", "b2"))), first_letter)
    assert (unknown.winner, unknown.completion.text) == ("b", "b1"), "the first seen wins"
    assert module.vote(output_of(completion("")), first_letter) == module.Vote(None, (), 0.0, None)
    assert module.vote(output_of(completion("a")), first_letter, weight=lambda _: 0.0).share == 0
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="a vote's weight must be finite and at least 0"):
            module.vote(output_of(completion("a")), first_letter, weight=lambda _, w=weight: w)


def check_first_accepted(module) -> None:
    seen = []

    def is_right(prompt, each):
        seen.append((prompt, each.text))
        return each.text == "yes"

    llm = FakeLLM(["no", "x", "no", "yes", "no", "no"])
    found = module.first_accepted(
        llm, "p", is_right, SamplingParams(seed=5), module.Budget(max_samples=9, round_size=3)
    )
    assert (found.accepted.text, found.num_samples, found.num_tokens) == ("yes", 6, 12)
    assert seen == [("p", "no"), ("p", "no"), ("p", "yes")], "the broken one, and those behind, were not to be seen"
    assert llm.asked == [("p", 3, 5), ("p", 3, 6)]

    llm = FakeLLM(["no"] * 20)
    found = module.first_accepted(llm, "p", is_right, budget=module.Budget(max_samples=7, round_size=3))
    assert found == module.Search(None, 7, 14)
    assert llm.asked == [("p", 3, None), ("p", 3, None), ("p", 1, None)]

    found = module.first_accepted(
        FakeLLM(["no"] * 20), "p", is_right, budget=module.Budget(max_tokens=10, round_size=3)
    )
    assert found == module.Search(None, 6, 12)
    scored = module.first_accepted(FakeLLM("abcd"), "p", lambda _, each: ord(each.text) / 100, threshold=0.98)
    assert scored.accepted.text == "c"
    with pytest.raises(InvalidRequestError, match="round_size must be a whole number >= 1"):
        module.Budget(round_size=0)


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


@pytest.mark.parametrize("part", [check_best_of, check_vote, check_first_accepted, check_figures])
def test_by_hand(part):
    part(selection_module)


def test_the_interval_covers():
    """Of many experiments, as many intervals hold the true rate as they say, about."""
    for rate, n in ((0.1, 30), (0.5, 30), (0.95, 100)):
        drawn = np.random.default_rng(0).binomial(n, rate, 4000)
        held = [low <= rate <= high for low, high in (selection_module.wilson_interval(int(c), n) for c in drawn)]
        assert 0.92 < np.mean(held) < 0.98


def test_on_an_engine(tiny_folder):
    """Log-probabilities are there when asked for; a verifier that wants the rare gets it or says what it spent."""
    with LLM(tiny_folder, device="cpu", dtype="float32", num_kv_blocks=96, block_size=4, max_model_len=64) as llm:
        params = SamplingParams(n=6, seed=1, max_tokens=7, ignore_eos=True, logprobs=0)
        (output,) = llm.generate("Once upon", params)
        by_hand = {each.index: sum(entry.logprob for entry in each.logprobs) for each in output.outputs}
        assert by_hand == pytest.approx({each.index: each.cumulative_logprob for each in output.outputs})
        best = selection_module.best_of(output, selection_module.mean_logprob)
        assert best.index == max(by_hand, key=by_hand.get)
        found = selection_module.first_accepted(llm, "Once upon", lambda _, each: each.token_ids[0] % 2 == 0, params)
        assert found.accepted.token_ids[0] % 2 == 0
        never = selection_module.first_accepted(llm, "Once upon", lambda *_: False, params)
        assert never == selection_module.Search(None, 16, 16 * 7)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("the worst of n", "return max(usable, key=scorer)", "return min(usable, key=scorer)"),
        ("the broken may win", "if each.error is None] or", "] or"),
        ("a sum is a mean", "/ max(1, len(completion.token_ids))", ""),
        ("the broken vote", "key(completion.text) if completion.error is None else None", "key(completion.text)"),
        ("no answer votes", "if answer is not None:", "if True:"),
        ("all weigh one", "1.0 if weight is None else weight(completion)", "1.0"),
        ("ties go to the unlikely", "-_likeliest(supporters", "_likeliest(supporters"),
        ("ties are not broken", ", -_likeliest(supporters[answer])", ""),
        ("the last supporter", "supporters[winner][0]", "supporters[winner][-1]"),
        ("a negative weight", "if not 0 <= weight < math.inf", "if not weight < math.inf"),
        ("an infinite weight", "if not 0 <= weight < math.inf", "if not 0 <= weight <= math.inf"),
        ("too many samples", "min(budget.round_size, budget.max_samples - num_samples)", "budget.round_size"),
        ("tokens are not counted", "num_tokens += sum", "num_tokens = sum"),
        ("tokens have no bound", "num_tokens < budget.max_tokens", "True"),
        ("each round draws the same", "params.seed + num_rounds", "params.seed"),
        ("the broken are verified", "completion.error is None and verifier", "verifier"),
        ("the threshold accepts all", "> threshold", "> -1"),
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
