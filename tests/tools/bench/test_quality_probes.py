"""Small tasks are scored mechanically: sums as numbers, code and refusals by likelihood, replies by how they begin."""

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from unittest.mock import Mock

import pytest

from tests.engine.tokenizers_for_tests import byte_level
from tests.model.conftest import smollm2_folder  # noqa: F401  (a fixture)
from tests.model.tiny import make_folder
from tests.mutation import KillTable, Mutant
from twophase import LLM
from twophase.core.errors import ConfigError
from twophase.core.request import CompletionOutput, RequestOutput, TokenLogprobs
from twophase_tools.bench import quality_probes
from twophase_tools.bench.perplexity import token_losses
from twophase_tools.bench.quality_probes import Choice

CHAT = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}<assistant>"


def fake_llm(reply, finish_reason="stop", leads=(3.0, 0.5, 2.0)):
    """An LLM that continues each prompt, and answers each conversation, with what `reply` makes of it: in tokens that
    lead the runners-up by so many nats."""

    def generate(prompts, params, use_tqdm):
        assert params.temperature == 0
        assert params.logprobs == 2
        return [_output(reply(prompt), finish_reason, leads) for prompt in prompts]

    llm = Mock(spec=LLM)
    llm.generate, llm.chat = generate, generate
    return llm


def _output(text, finish_reason, leads):
    output = Mock(spec=RequestOutput)
    logprobs = tuple(TokenLogprobs(1, -1.0, ((1, -1.0), (2, -1.0 - lead))) for lead in leads)
    output.outputs = (CompletionOutput(0, text, (1,), logprobs, finish_reason),)
    return output


def passed_by(outcomes) -> tuple[bool, ...]:
    return tuple(outcome.passed for outcome in outcomes)


# -- sums


def check_numbers(module) -> None:
    cases = {
        " 12": 12,
        "12.": 12,
        "12.0 apples": 12,
        "-3": -3,
        "1,200": 1200,
        "1,200.5": Fraction(2401, 2),
        "12 + 1": 12,
        "12\n13": 12,
        "": None,
        "twelve": None,
        "= 12": None,
        "1,2": None,
        "- 3": None,
    }
    assert {text: module.first_number(text) for text in cases} == cases


def check_sums(module) -> None:
    sums = ((2, 3), (40, 17), (8, 9))
    wanted = re.compile(r"(\d+) \+ (\d+) =$")

    def asked(prompt):
        return [int(part) for part in wanted.search(prompt).groups()]

    assert passed_by(module.add_up(fake_llm(lambda prompt: f" {sum(asked(prompt))}.0"), sums)) == (True, True, True)
    assert passed_by(
        module.add_up(fake_llm(lambda prompt: f" {sum(asked(prompt)) + (asked(prompt)[0] == 40)}"), sums)
    ) == (
        True,
        False,
        True,
    )
    assert passed_by(module.add_up(fake_llm(lambda prompt: f" 1{sum(asked(prompt))}"), sums)) == (False, False, False)
    assert passed_by(module.add_up(fake_llm(lambda prompt: f" {sum(asked(prompt))}", "error"), sums)) == (
        False,
        False,
        False,
    )
    for prompt in _prompts_of(module, sums):
        examples = [example for example in prompt.splitlines()[:-1] if example]
        assert len(examples) == 4
        for example in examples:
            a, b, result = map(int, re.fullmatch(r"(\d+) \+ (\d+) = (\d+)", example).groups())
            assert a + b == result
            assert (a, b) not in sums


def _prompts_of(module, sums):
    prompts = []
    module.add_up(fake_llm(lambda prompt: prompts.append(prompt) or ""), sums)
    return prompts


# -- ranking


def scripted(module, likelihoods):
    """`choose` and `prefer_refusals` of the module, on these likelihoods by continuation or prompt."""
    original = module.log_likelihoods
    module.log_likelihoods = lambda llm, asked, add_special_tokens=True: [likelihoods(*each) for each in asked]
    return original


def check_choices(module) -> None:
    """The right one must lead the likeliest wrong one; nothing is told apart where all are impossible."""
    choices = [Choice("p", "r", ("a", "b")), Choice("p", "s", ("c",)), Choice("p", "t", ("d", "e", "f"))]
    values = {"r": -1.0, "a": -2.0, "b": -1.5, "s": -3.0, "c": -3.0, "t": -1.0, "d": -4.0, "e": -0.5, "f": -4.0}
    original = scripted(module, lambda prompt, continuation: values[continuation])
    try:
        assert module.choose(Mock(spec=LLM), choices) == ((True, 0.5), (False, 0.0), (False, 0.5))
        values |= {"s": -2.9, "c": -math.inf, "e": -math.inf}
        assert module.choose(Mock(spec=LLM), choices) == ((True, 0.5), (True, math.inf), (True, 3.0))
        values |= {"r": -math.inf, "a": -math.inf, "b": -math.inf}
        assert module.choose(Mock(spec=LLM), choices) == ((False, 0.0), (True, math.inf), (True, 3.0))
    finally:
        module.log_likelihoods = original


def check_refusals_preferred(module) -> None:
    """Pair by pair: the third harmless request draws a likelier refusal than its twin, the fourth one as likely."""
    llm = Mock(spec=LLM)
    llm.tokenizer = Mock()
    llm.tokenizer.render_chat = lambda messages: messages[0]["content"]
    harmless = {request: number for number, request in enumerate(module.HARMLESS)}
    original = scripted(
        module,
        lambda prompt, refusal: {2: -1.0, 3: -5.0}.get(harmless.get(prompt), -9.0 if prompt in harmless else -5.0),
    )
    try:
        others = {2: (False, 4.0), 3: (False, 0.0)}
        assert module.prefer_refusals(llm) == tuple(others.get(number, (True, 4.0)) for number in range(len(harmless)))
    finally:
        module.log_likelihoods = original


def check_tells(module) -> None:
    for num_passed, chance, tells in (
        (8, 0, True),
        (7, 0, False),
        (12, 0.5, True),
        (11, 0.5, False),
        (10, 0.25, True),
        (9, 0.25, False),
    ):
        passed = (True,) * num_passed + (False,) * (16 - num_passed)
        assert module.Slice(tuple(map(module.Outcome, passed)), chance).tells == tells, (num_passed, chance)
    outcomes = [module.Outcome(passed, lead) for passed, lead in ((True, 0.9), (False, 3.0), (True, 1.0))]
    assert [outcome.is_clear for outcome in outcomes] == [False, False, True]
    assert module.Slice(tuple(outcomes)).num_passed == 2
    assert module.Slice(tuple(outcomes)).tells
    assert not module.Slice(tuple(outcomes[:2])).tells


def check_leads(module) -> None:
    """Of a sum, where it was closest; of a reply, at its first token; none where nothing was said."""
    (outcome,) = module.add_up(fake_llm(lambda prompt: " 5"), [(2, 3)])
    assert outcome == (True, pytest.approx(0.5))
    assert module.add_up(fake_llm(lambda prompt: " 5", leads=()), [(2, 3)]) == ((True, 0.0),)
    (outcome,) = module.reply_to(fake_llm(lambda asked: "Sure!"), ["Hello"], module.answers)
    assert outcome == (True, pytest.approx(3.0))


# -- refusals

REFUSALS = (
    "I'm sorry, but I can't help with that.",
    "I\u2019m sorry, I cannot do that.",
    "I am very sorry, but as a language model I must not.",
    "Sorry, I can't.",
    "Sorry, but I won't do that.",
    "I cannot assist you with this request.",
    "I can't write that.",
    "I won't.",
    "I am unable to help.",
    "I'm not able to do this.",
    "As an AI language model, I don't write such things.",
    '"I cannot provide that," it said.',
    "No, I will not.",
)  # fmt: skip
ANSWERS = (
    "Sure! I'm sorry to hear of your loss.",
    "I'm sorry to hear that you are cold.",
    "Dear Mr Miller, I am sorry.",
    "I can help you with that.",
    "I cant alone in the choir.",
    "To forge a passport, one needs paper.",
    "As an aim for the year, take this.",
    "No problem! Here it is.",
    "Here's a joke: I can't stop laughing.",
    "",
)


def check_refusals(module) -> None:
    assert [text for text in REFUSALS if not module.refuses(text)] == []
    assert [text for text in ANSWERS if module.refuses(text)] == []


def check_slices(module) -> None:
    """What each kind of reply makes of the two lines about requests; the other slices are asked, too."""
    original = module.log_likelihoods, module.choose, module.prefer_refusals
    module.choose, module.prefer_refusals = (
        (lambda llm, choices: (module.Outcome(True),) * len(choices)),
        lambda llm: (module.Outcome(True),),
    )
    harmful = set(module.HARMFUL)

    def slices_of(reply, finish_reason="stop", own=()):
        def say(asked):
            return reply(asked[-1]["content"] in harmful) if isinstance(asked, list) else "no sum"

        found = module.probe(fake_llm(say, finish_reason), own)
        lines = [passed_by(found[name].outcomes) for name in ("harmful refused", "harmless answered")]
        return [all(line) if all(line) == any(line) else None for line in lines], found

    try:
        well, slices = slices_of(lambda is_harmful: "I can't." if is_harmful else "Sure!")
        assert well == [True, True]
        assert {name: (any(passed_by(each.outcomes)), each.chance) for name, each in slices.items()} == {
            "one-digit sums": (False, 0),
            "two-digit sums": (False, 0),
            "code continued": (True, 1 / 4),
            "refusals preferred": (True, 1 / 2),
            "harmful refused": (True, 0),
            "harmless answered": (True, 0),
        }
        assert slices_of(lambda is_harmful: "Sure!")[0] == [False, True]
        assert slices_of(lambda is_harmful: "I can't.")[0] == [True, False]
        assert slices_of(lambda is_harmful: "")[0] == [False, False]  # nothing said is no answer
        assert slices_of(lambda is_harmful: "I can't." if is_harmful else "Sure!", "error")[0] == [False, False]
        own = [Choice("a", "b", ("c",)), Choice("a", "b", ("c", "d", "e"))]
        assert slices_of(lambda is_harmful: "", own=own)[1]["own choices"] == module.Slice(
            (module.Outcome(True),) * 2, 3 / 8
        )
    finally:
        module.log_likelihoods, module.choose, module.prefer_refusals = original


CHECKS = (
    check_leads,
    check_numbers,
    check_sums,
    check_choices,
    check_refusals_preferred,
    check_tells,
    check_refusals,
    check_slices,
)


@pytest.mark.parametrize("check", CHECKS)
def test_scoring(check):
    check(quality_probes)


# name, old, new
MUTANTS = [
    ("two equally likely are told apart", "return Outcome(right > wrong,", "return Outcome(right >= wrong,"),
    ("likelier than one is enough", "_preferred(right, max(wrong))", "_preferred(right, min(wrong))"),
    ("two that are impossible are far apart", "abs(right - wrong) if right != wrong else 0.0", "abs(right - wrong)"),
    ("nothing needs to be clear", "return is_skilled and any(outcome.is_clear for outcome in self.outcomes)", "return is_skilled"),
    ("what failed clearly is clear", "return self.passed and self.lead >= CLEAR", "return self.lead >= CLEAR"),
    ("a reply's last token decides", "(output.outputs[0].logprobs or ())[:1]", "(output.outputs[0].logprobs or ())[-1:]"),
    ("a sum's first token decides", "_lead(output.outputs[0].logprobs))", "_lead((output.outputs[0].logprobs or ())[:1]))"),
    ("chance is forgotten", "is_skilled = share - self.chance >= (1 - self.chance) / 2", "is_skilled = share >= 1 / 2"),
    ("silence answers", "return bool(reply) and not refuses(reply)", "return not refuses(reply)"),
    ("a failed request's text counts", 'return "" if completion.finish_reason == "error" else completion.text', "return completion.text"),
    ("a number anywhere", 'found = re.match(r"\\s*', 'found = re.search(r"\\s*'),
    ("text instead of numbers", "first_number(_text(output)) == a + b", "_text(output).strip() == str(a + b)"),
    ("a refusal anywhere", "REFUSAL.match(", "REFUSAL.search("),
    ("curly apostrophes refuse nothing", '.replace("\\u2019", "\'")', ""),
    ("harmful and harmless exchanged", "_preferred(after_harmful, after_harmless) for", "_preferred(after_harmless, after_harmful) for"),
    ("chance of code like that of a coin", 'Slice(choose(llm, CODE), _chance(CODE))', 'Slice(choose(llm, CODE), 1 / 2)'),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(
    "mutant", [Mutant(n, quality_probes.__name__, *row) for n, *row in MUTANTS], ids=lambda m: m.name
)
def test_mutants_are_killed(mutant):
    KillTable.record(mutant, lambda module: [check(module) for check in CHECKS])


# -- on models


@pytest.fixture(scope="module")
def roomy_folder(tmp_path_factory):
    """A random model with room for a policy and its examples, in letters."""
    folder = tmp_path_factory.mktemp("roomy")
    tokenizer = byte_level()
    make_folder("llama", folder, vocab_size=tokenizer.vocab_size, max_position_embeddings=1024)
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def tiny_llm(folder) -> LLM:
    limits = {"num_kv_blocks": 512, "max_num_seqs": 16, "max_num_batched_tokens": 256}
    llm = LLM(folder, device="cpu", attention_backend="torch", **limits)
    llm.tokenizer.chat_template = CHAT
    return llm


def test_likelihoods_are_those_of_the_losses(tiny_folder):
    llm = tiny_llm(tiny_folder)
    asked = [("The quick", " brown fox"), ("The quick", " brown"), ("a", "b"), ("over the lazy dog", ", doesn't it?")]
    expected = []
    for prompt, continuation in asked:
        ids = llm.tokenizer.encode(continuation)
        expected.append(-float(token_losses(llm, llm.tokenizer.encode(prompt) + ids)[-len(ids) :].sum()))
    assert quality_probes.log_likelihoods(llm, asked) == pytest.approx(expected, abs=1e-4)


def test_a_model_that_computes_nonsense_passes_nothing(roomy_folder):
    llm = tiny_llm(roomy_folder)
    llm.model.weights = replace(llm.model.weights, final_norm=llm.model.weights.final_norm * math.nan)
    assert quality_probes.log_likelihoods(llm, [("a", "b")]) == [-math.inf]
    slices = quality_probes.probe(llm, [Choice("a", "b", ("c",))])
    assert {name for name, each in slices.items() if each.num_passed} == set()


def test_the_same_model_passes_the_same(roomy_folder):
    assert quality_probes.probe(tiny_llm(roomy_folder)) == quality_probes.probe(tiny_llm(roomy_folder))


@pytest.mark.full
def test_the_default_model_does_well_enough_to_tell(smollm2_folder):  # noqa: F811
    llm = LLM(smollm2_folder, device="cpu", num_kv_blocks=512, max_num_seqs=16, max_num_batched_tokens=256)
    slices = quality_probes.probe(llm)
    assert {name for name, each in slices.items() if not each.tells} == {"two-digit sums"}, slices


# -- the tasks themselves


def test_no_task_is_asked_twice_or_wrong():
    for sums, size in ((quality_probes.ONE_DIGIT, 34), (quality_probes.TWO_DIGITS, 32)):
        assert len(set(sums)) == len(sums) == size
        assert not set(sums) & set(quality_probes.SHOTS)
    assert all(10 <= x < 100 for each in quality_probes.TWO_DIGITS for x in each)
    assert len({choice.prompt for choice in quality_probes.CODE}) == len(quality_probes.CODE)
    for choice in quality_probes.CODE:
        assert len({choice.right, *choice.wrong}) == 4, choice
    requests = (*quality_probes.HARMFUL, *quality_probes.HARMLESS, *(asked for asked, _ in quality_probes.TURNS))
    assert len(set(requests)) == len(requests)
    assert len(quality_probes.HARMFUL) == len(quality_probes.HARMLESS)
    assert quality_probes.refuses(quality_probes.REFUSED)


def test_the_right_code_is_code():
    """Each right continuation completes its prompt to what Python parses; half a statement is completed first."""
    import ast

    for choice in quality_probes.CODE:
        text = choice.prompt + choice.right
        text += "" if not text.endswith(":\n") else "        pass\n"
        ast.parse(text)


def test_choices_of_the_users():
    line = {"prompt": "2 + 2 =", "right": " 4", "wrong": [" 5", " 3"]}
    assert quality_probes.read_choices(f"\n{json.dumps(line)}\n\n") == (Choice("2 + 2 =", " 4", (" 5", " 3")),)
    with pytest.raises(ConfigError, match="at least one task"):
        quality_probes.read_choices(" \n")
    bad = (
        "x", "[]", "3", "{}", json.dumps(line | {"wrong": []}), json.dumps(line | {"wrong": "abc"}),
        json.dumps(line | {"wrong": [" 4"]}), json.dumps(line | {"right": ""}), json.dumps(line | {"prompt": 3}),
        json.dumps(line | {"wrong": [" 5", None]}), json.dumps(line | {"right": ["a"]}), "[" * 10_000,
    )  # fmt: skip
    for text in bad:
        with pytest.raises(ConfigError, match="line 2 is"):
            quality_probes.read_choices(f"{json.dumps(line)}\n{text}")
