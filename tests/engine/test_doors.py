"""The examples in the docstrings of the engine's doors are whole: they run in an engine as they stand."""

import inspect
import re
import textwrap

import numpy as np

from tests.engine.engines import GREEDY, make_engine, prompt_of, run, tokens_of
from tests.engine.speculating import plain_outputs, speculating
from twophase.core.request import SamplingParams
from twophase.engine.constraint import Constraint
from twophase_features.speculation.drafter import Drafter
from twophase_features.structured_outputs.params import StructuredOutputs

PROMPTS = [prompt_of(seed, 7) for seed in range(3)]


def example_in(door, **names):
    """The class that the door's docstring shows."""
    shown = re.search(r"^ {4}class \w+:\n(?:(?: {8}.*)?\n)+", inspect.getdoc(door), re.MULTILINE).group()
    exec(textwrap.dedent(shown), names)
    return names[re.search(r"class (\w+)", shown).group(1)]


class Evenly:
    """Compiler and grammar of one form, and its constraint is the docstring's."""

    def __init__(self, vocab_size):
        self.constraint = example_in(Constraint, np=np, num_words=-(-vocab_size // 32))

    def compile(self, params):
        return self

    def accepts(self, text):
        return True


def test_a_drafter(tiny_model):
    engine = speculating(tiny_model, example_in(Drafter)())
    assert [tokens_of(output) for output in run(engine, PROMPTS)] == plain_outputs(tiny_model, PROMPTS, GREEDY)
    assert engine.stats().num_draft_tokens > 0


def test_a_constraint_with_and_without_drafts(tiny_model):
    params = SamplingParams(seed=1, max_tokens=12, ignore_eos=False, structured_outputs=StructuredOutputs(regex="any"))
    even = Evenly(tiny_model.config.vocab_size)
    plain = [tokens_of(output) for output in run(make_engine(tiny_model, guidance=even), PROMPTS, params)]
    assert all(len(tokens) == 12 for tokens in plain)
    assert {token % 2 for tokens in plain for token in tokens} == {0}

    drafting = speculating(tiny_model, example_in(Drafter)(), guidance=even)
    assert [tokens_of(output) for output in run(drafting, PROMPTS, params)] == plain
    assert drafting.stats().num_draft_tokens > 0
