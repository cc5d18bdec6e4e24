"""Validation: a bad request gets a clear error and changes nothing, whatever is wrong with it."""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

from tests.engine.engines import check_idle, finish, make_engine, prompt_of, run, tokens_of
from tests.engine.tokenizers_for_tests import byte_level
from tests.mutation import KillTable, Mutant
from twophase import SamplingParams, StructuredOutputs
from twophase.core import rules
from twophase.core.errors import InvalidRequestError
from twophase.engine import engine as engine_module
from twophase.engine import request_state
from twophase_features.policies.deadlines import DeadlinePolicy

pytestmark = pytest.mark.unchecked_types

NAN, INF = math.nan, math.inf
PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def refused(engine, message, prompt=None, params=PARAMS, request_id="a", **options) -> None:
    """The request is refused; afterwards the engine is idle and the id is free."""
    with pytest.raises(InvalidRequestError, match=message):
        engine.add_request(request_id, prompt_of(0, 5) if prompt is None else prompt, params, **options)
    assert not engine.has_unfinished_requests()
    check_idle(engine)


BAD_OPTIONS = [
    *(({"priority": bad}, "priority must be a whole number") for bad in (NAN, 0.5, "x", None, True, [1], np.array([1]))),
    *(({"ttft_slo_s": bad}, "ttft_slo_s must be a finite number of seconds >= 0, or None, got") for bad in (NAN, INF, -1, "1", True, 10**400)),
    *(({"arrival_s": bad}, "arrival_s must be a finite number of seconds, got") for bad in (NAN, -INF, "1", [0], 1j)),
    *(({"cache_salt": bad}, "cache_salt must be text") for bad in (None, 5, b"x", "\ud800")),
    *(({"tenant": bad}, "tenant must be text") for bad in (None, 5, b"x", "\ud800")),
    *(({"request_id": bad}, "request_id must be text") for bad in (None, 5, [], "\udfff")),
]  # fmt: skip


def test_a_policy_is_given_numbers_that_can_be_compared(tiny_model):
    engine = make_engine(tiny_model, policy=DeadlinePolicy())
    for options, message in BAD_OPTIONS:
        refused(engine, message, **options)
    engine.add_request(
        "a", prompt_of(0, 5), PARAMS, priority=np.int8(-3), arrival_s=np.float32(0), ttft_slo_s=Fraction(1, 2)
    )
    engine.add_request("b", prompt_of(1, 5), PARAMS, priority=torch.tensor(2), arrival_s=np.array(1), ttft_slo_s=0)
    assert set(finish(engine)) == {"a", "b"}


BAD_PROMPTS = [
    (None, "a prompt is text or"),
    (5, "a prompt is text or"),
    (b"bytes", "a prompt is text or"),
    ({"prompt": None}, r'prompt\["prompt"\] must be text'),
    ({"prompt": "x", "prompt_token_ids": [1]}, "a mapping with keys"),
    ({"prompt": "x", "cache_salt": 5}, "cache_salt must be text"),
    ({"prompt_token_ids": [5], "cache_salt": None}, "cache_salt must be text"),
    ("\ud800", r"a prompt must be text .*surrogate pair\), got '\\ud800'"),
    *(({"prompt_token_ids": bad}, "prompt_token_ids must be a list") for bad in (5, None, "56", b"56", {5: 6}, {5, 6}, np.array(5))),
    *(({"prompt_token_ids": [5, bad]}, "at position 1") for bad in (None, NAN, 2.0, "6", True, np.True_, [6], 10**30, -1)),
    ({"prompt_token_ids": np.ones((2, 2), int)}, "at position 0"),
    ({"prompt_token_ids": torch.tensor([0.5])}, "at position 0"),
]  # fmt: skip


def check_bad_prompts(module) -> None:
    for prompt, message in BAD_PROMPTS:
        with pytest.raises(InvalidRequestError, match=message):
            module.parse_prompt(prompt, byte_level(), 330)


def test_prompts(tiny_model):
    check_bad_prompts(request_state)
    engine = make_engine(tiny_model, codec=byte_level())
    for prompt, message in BAD_PROMPTS:
        with pytest.raises(InvalidRequestError, match=message):
            engine.add_request("a", prompt, PARAMS)
        assert not engine.has_unfinished_requests()
        check_idle(engine)
    for ids in (
        [5, 6],
        (5, 6),
        np.array([5, 6], np.uint8),
        torch.tensor([5, 6]),
        range(5, 7),
        [np.int64(5), torch.tensor(6)],
    ):
        assert request_state.parse_prompt({"prompt_token_ids": ids}, None, 330) == ((5, 6), None, "", "")


BAD_PARAMS = [
    ("n", "a whole number >= 1", (0, 1.0, "1", None, True, np.bool_(1), [1], NAN)),
    ("temperature", "a finite number >= 0", (-1, NAN, INF, 10**400, "1", None, False, torch.ones(1), 1j)),
    ("top_k", "a whole number >= 0", (-2, 5.0, None, "5")),
    ("top_p", r"in \(0, 1\]", (0, 1.01, NAN, None, True, np.float32("nan"))),
    ("min_p", r"in \[0, 1\]", (-0.1, 1.01, NAN, None, True)),
    ("repetition_penalty", r"in \[0.01, 100\]", (0, 0.0099, 101, 1e300, 5e-324, NAN, None)),
    *((name, r"in \[-2, 2\] \(0: no penalty\)", (2.1, -2.1, NAN, "1", None)) for name in ("presence_penalty", "frequency_penalty")),
    ("seed", "a whole number >= 0 and <= 18446744073709551615, or None", (-1, 2**64, 1.5, "1")),
    ("max_tokens", "a whole number >= 1", (0, None, 3.0)),
    ("stop", "text or a list of at most 32 texts", ("", ["a", ""], 5, [5], [None], {"a"}, b"a", "\ud800", ["a"] * 33, "a" * 257)),
    ("stop_token_ids", "a list of at most 1024 token ids", (5, [-1], "5", ["5"], [True], {5}, [0.5], [1] * 1025)),
    ("logprobs", "a whole number >= 0 and <= 20, or None", (-1, 21, 0.0, True)),
    ("prompt_logprobs", "a whole number >= 0 and <= 20, or None", (-1, 21, 0.0, True)),
    *((name, "True or False", (None, 1, "yes", [])) for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")),
    ("structured_outputs", "StructuredOutputs", ("a", {"regex": "a"})),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rule", "values"), BAD_PARAMS, ids=[name for name, *_ in BAD_PARAMS])
def test_sampling_params_state_the_rule_and_the_value(name, rule, values):
    for value in values:
        with pytest.raises(InvalidRequestError, match=f"{name} must be {rule}"):
            SamplingParams(**{name: value})


def check_scalars(module) -> None:
    """NumPy's and PyTorch's scalars become plain numbers, 0-d arrays too."""
    for value in (np.int8(3), np.uint64(3), np.array(3), torch.tensor(3), 3):
        read = module.whole_number(at_least=3, at_most=3).read(value)
        assert (read, type(read)) == (3, int)
    for value in (np.float16(0.5), np.array(0.5), torch.tensor(0.5, dtype=torch.bfloat16), Fraction(1, 2), 0.5):
        read = module.number("a half", lambda x: x == 0.5).read(value)
        assert (read, type(read)) == (0.5, float)
    assert type(module.number("any").read(1)) is float
    for value in (np.bool_(1), torch.tensor(True), np.array([3]), torch.tensor([3]), np.str_("3"), np.float64(3)):
        with pytest.raises((TypeError, ValueError)):
            module.whole_number().read(value)
    assert module.read_flag(np.bool_(0)) is False


def test_rules():
    for check in (check_scalars, check_bounds, check_text):
        check(rules)


def test_a_top_k_of_minus_one_keeps_all():
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0) == SamplingParams()


def test_params_that_are_none(tiny_model):
    refused(make_engine(tiny_model), "must be SamplingParams", params={"n": 1})
    assert len(run(make_engine(tiny_model), [prompt_of(0, 5)], [None])[0].outputs[0].token_ids) == 16


class Broken:
    """A codec that cannot decode."""

    def encode(self, text, *, max_model_len=None):
        return byte_level().encode(text)

    def decode(self, ids, skip_special_tokens=True):
        raise RuntimeError("planted")


def check_no_ghost(module, model) -> None:
    """A request is refused before anything is made for it. Whatever raises later, its id is free again, and the others
    get what they get alone."""
    alone = tokens_of(run(make_engine(model), [prompt_of(3, 5)], SamplingParams(max_tokens=6))[0])
    engine = make_engine(model, codec=Broken(), engine_class=module.Engine)
    for n in (5_000, 10**40):
        refused(engine, "n must be at most max_num_seqs=8", params=SamplingParams(n=n))
    with pytest.raises(RuntimeError, match="planted"):
        engine.add_request("0", prompt_of(0, 5), PARAMS)
    check_idle(engine)
    assert not engine.has_unfinished_requests()
    engine._codec = None
    assert tokens_of(run(engine, [prompt_of(3, 5)], SamplingParams(max_tokens=6))[0]) == alone


def test_no_ghost(tiny_model):
    check_no_ghost(engine_module, tiny_model)


@pytest.mark.parametrize(
    "prompts", [None, 5, b"ab", {"a", "b"}, [None], ["dog", 5], "\ud800", {"prompt": None}, [[5, "a"]], [5, 6]]
)
def test_bad_prompts_of_an_llm(llm, prompts):
    with pytest.raises(InvalidRequestError, match=r"must be|a prompt is"):
        llm.generate(prompts, PARAMS)
    assert not llm.engine.has_unfinished_requests()
    assert llm._latest == {}


def test_deep_schemas():
    schema, depth = {}, 100_000
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    for deep in (schema, '{"type":"array","items":' * depth + "{}" + "}" * depth):
        with pytest.raises(InvalidRequestError, match=r"structured_outputs.json .*nested"):
            StructuredOutputs(json=deep)


def check_bounds(module) -> None:
    rule = module.whole_number(at_least=1, at_most=3)
    assert rule.words == "a whole number >= 1 and <= 3"
    for value in (0, 4):
        with pytest.raises(ValueError):
            rule.read(value)


def check_text(module) -> None:
    assert module.read_text("é😀") == "é😀"
    with pytest.raises(ValueError):
        module.read_text("\ud800")
    assert module.shown("\ud800x\n" * 100).startswith("'\\ud800x\\n")
    assert len(module.shown("x" * 10**6)) < 100
    assert module.shown(10**5000) == "a int"


CHECKS = {"prompts": check_bad_prompts, "scalars": check_scalars, "bounds": check_bounds, "text": check_text}
MUTANTS = [
    ("a bool is a number", "core.rules", "isinstance(found, bool) != is_flag", "False", "scalars"),
    ("arrays of one are scalars", "core.rules", 'getattr(value, "ndim", 0) != 0', "False", "scalars"),
    ("scalars stay what they are", "core.rules", "found = value.item() if", "found = value if", "scalars"),
    ("upper bounds forgotten", "core.rules", "n <= at_most)", "n <= at_most or True)", "bounds"),
    ("half surrogates", "core.rules", "    value.encode()\n", "", "text"),
    ("ids from a set", "engine.request_state", "tuple(items_of(ids))", "tuple(ids)", "prompts"),
    ("ids beyond the vocabulary", "engine.request_state", "0 <= token_id < vocab_size", "0 <= token_id", "prompts"),
    ("salt of any type", "engine.request_state", 'checked("cache_salt", given.get("cache_salt", ""), TEXT)', 'given.get("cache_salt", "")', "prompts"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=[name for name, *_ in MUTANTS])
def test_mutants(mutant):
    name, module, old, new, check = mutant
    KillTable.record(Mutant(name, f"twophase.{module}", old, new), CHECKS[check])


@pytest.mark.mutants
def test_a_mutant_that_makes_state_before_the_validation_is_killed(tiny_model):
    line = "        check_request(request, self._scheduler.config, self._scheduler.cache)\n"
    mutant = Mutant("state before the validation", "twophase.engine.engine", line, "")
    KillTable.record(mutant, partial(check_no_ghost, model=tiny_model))
