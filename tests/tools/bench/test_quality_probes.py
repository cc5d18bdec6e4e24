"""Sums are scored as numbers, and what was no close call is told from what was."""

import re
from fractions import Fraction
from unittest.mock import Mock

import pytest

from tests.mutation import KillTable, Mutant
from twophase import LLM
from twophase.core.request import CompletionOutput, RequestOutput, TokenLogprobs
from twophase_tools.bench import quality_probes

SUMS = ((2, 3), (40, 17), (8, 9))
WANTED = re.compile(r"(\d+) \+ (\d+) =$")


def fake_llm(reply, finish_reason="stop", leads=(3.0, 0.5, 2.0)):
    """An LLM that continues each prompt with what `reply` makes of it, in tokens that lead the runners-up by so many nats."""

    def generate(prompts, params, use_tqdm):
        assert (params.temperature, params.logprobs) == (0, 2)
        return [_output(reply(prompt), finish_reason, leads) for prompt in prompts]

    llm = Mock(spec=LLM)
    llm.generate = generate
    return llm


def _output(text, finish_reason, leads):
    output = Mock(spec=RequestOutput)
    logprobs = tuple(TokenLogprobs(1, -1.0, ((1, -1.0), (2, -1.0 - lead))) for lead in leads)
    output.outputs = (CompletionOutput(0, text, (1,), logprobs, finish_reason),)
    return output


def check_numbers(module) -> None:
    cases = {
        " 12": 12, "12.": 12, "12.0 apples": 12, "-3": -3, "1,200": 1200, "1,200.5": Fraction(2401, 2), "12 + 1": 12,
        "12\n13": 12, "": None, "twelve": None, "= 12": None, "1,2": None, "- 3": None,
    }  # fmt: skip
    assert {text: module.first_number(text) for text in cases} == cases


def total(prompt):
    return sum(map(int, WANTED.search(prompt).groups()))


def check_sums(module) -> None:
    def passed(reply, *rest):
        return [outcome.passed for outcome in module.add_up(fake_llm(reply, *rest), SUMS)]

    assert passed(lambda prompt: f" {total(prompt)}.0") == [True, True, True]
    assert passed(lambda prompt: f" {total(prompt) + (total(prompt) == 57)}") == [True, False, True]
    assert passed(lambda prompt: f" 1{total(prompt)}") == [False, False, False]
    assert passed(lambda prompt: f" {total(prompt)}", "error") == [False, False, False]
    prompts = []
    module.add_up(fake_llm(lambda prompt: prompts.append(prompt) or ""), SUMS)
    for prompt in prompts:
        examples = prompt.splitlines()[:-1]
        assert len(examples) == 4
        for example in examples:
            a, b, result = map(int, re.fullmatch(r"(\d+) \+ (\d+) = (\d+)", example).groups())
            assert a + b == result
            assert (a, b) not in SUMS


def check_leads(module) -> None:
    """The closest token decides; a call is clear from one nat on, and where nothing was said nothing is."""
    for leads, lead, is_clear in (((3.0, 0.5, 2.0), 0.5, False), ((3.0, 1.0), 1.0, True), ((), 0.0, False)):
        (found,) = module.add_up(fake_llm(lambda prompt: f" {total(prompt)}", "stop", leads), SUMS[:1])
        assert (found.lead, found.is_clear) == (pytest.approx(lead), is_clear)
    (wrong,) = module.add_up(fake_llm(lambda prompt: " 0", "stop", (3.0,)), SUMS[:1])
    assert not wrong.is_clear


CHECKS = (check_numbers, check_sums, check_leads)


@pytest.mark.parametrize("check", CHECKS)
def test_the_scores(check):
    check(quality_probes)


MUTANTS = [
    ("any number in the text", "re.match(r", "re.search(r"),
    ("failed requests count", 'said = "" if completion.finish_reason == "error" else completion.text', "said = completion.text"),
    ("the clearest token decides", "return min((entry.top", "return max((entry.top"),
    ("wrong ones are clear", "return self.passed and self.lead >= CLEAR", "return self.lead >= CLEAR"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(
    "mutant", [Mutant(name, quality_probes.__name__, old, new) for name, old, new in MUTANTS], ids=lambda m: m.name
)
def test_mutants_are_killed(mutant):
    KillTable.record(mutant, lambda module: [check(module) for check in CHECKS])
