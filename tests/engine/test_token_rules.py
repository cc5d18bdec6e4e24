"""What a request may ask of its tokens besides chance: a least number of them, biases, penalties for repeating."""

import numpy as np
import pytest

from tests.mutation import KillTable, Mutant, installed
from twophase import SamplingParams, StructuredOutputs
from twophase.core.errors import InvalidRequestError
from twophase.engine import model_run, sampler
from twophase.engine.detokenizer import Detokenizer
from twophase_features import score_edits, stop_strings
from twophase_features.score_edits import bias_of

PROMPT = {"prompt_token_ids": [40, 41, 42, 43, 44]}
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def generate(llm, **params):
    (output,) = llm.generate(PROMPT, SamplingParams(**(GREEDY | params)), use_tqdm=False)
    return output.outputs


class TestMinTokens:
    def test_no_stop_token_comes_before(self, llm):
        (free,) = generate(llm)
        stops = sorted(set(free.token_ids[:3]))
        (early,) = generate(llm, stop_token_ids=stops)
        assert (len(early.token_ids), early.finish_reason) == (1, "stop")
        for least in (1, 2, 6, 12):
            (late,) = generate(llm, stop_token_ids=stops, min_tokens=least)
            assert len(late.token_ids) > least or least == 12 == len(late.token_ids)
            assert not set(late.token_ids[:least]) & set(stops)

    def test_neither_does_the_end_of_the_text(self, llm):
        eos = next(iter(llm.model_config.eos_token_ids))
        outputs = generate(llm, logit_bias={eos: 100.0}, ignore_eos=False, n=2, temperature=1.0, seed=1, min_tokens=5)
        assert [(len(each.token_ids), each.token_ids[-1], each.finish_reason) for each in outputs] == [
            (6, eos, "stop")
        ] * 2

    def test_stop_strings_are_text_like_any_other_till_then(self, llm):
        (free,) = generate(llm)
        stop = llm.tokenizer.decode(free.token_ids[:1])
        (early,) = generate(llm, stop=stop)
        assert early.text == ""
        (late,) = generate(llm, stop=stop, min_tokens=8)
        assert late.token_ids[:8] == free.token_ids[:8]
        assert late.text.startswith(stop)

    def test_refusals(self):
        with pytest.raises(InvalidRequestError, match=r"min_tokens must not exceed max_tokens, got 17 > 16"):
            SamplingParams(min_tokens=17)
        with pytest.raises(InvalidRequestError, match=r"structured_outputs and min_tokens=3 contradict"):
            SamplingParams(min_tokens=3, structured_outputs=StructuredOutputs(regex="a"))


class Characters:
    """Token i is the character i."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(chr, ids))


def check_stop_after(module=stop_strings):
    """ "ab" at 0 is early; "b" at 3 completes one that began early, which does not count; the next is whole."""
    for stop, min_tokens, text, shown in (("ab", 3, "abaxab", "abax"), ("b", 2, "abb", "ab")):
        with installed(module):
            detokenizer = Detokenizer(Characters(), SamplingParams(stop=stop, min_tokens=min_tokens), [65])
        matched = [detokenizer.append(ord(character)) for character in text]
        assert matched == [None] * (len(text) - 1) + [stop]
        assert detokenizer.text == shown


def test_a_stop_string_begins_after_the_last_early_token():
    check_stop_after()


def test_biases_are_made_once_for_all_steps_and_completions(llm, monkeypatch):
    """Of 16 x 300 biases a step in Python, each took as long as a step."""
    made, used = [], []
    monkeypatch.setattr(score_edits, "bias_of", lambda params: made.append(bias_of(params)) or made[-1])
    monkeypatch.setattr(model_run, "sample", lambda logits, rows, _: used.extend(rows) or sampler.sample(logits, rows))
    bias = dict.fromkeys(range(300), 1.0)
    generate(llm, logit_bias=bias, n=4, temperature=1.0, seed=1)
    assert len(made) == 1
    assert len(used) == 1 + 4 * 11
    assert {id(row.bias) for row in used} == {id(made[0])}
    assert (made[0].token_ids.tolist(), made[0].values.tolist()) == (list(bias), [1.0] * 300)


@pytest.mark.unchecked_types
def test_biases_of_any_kind_and_their_refusal(llm):
    kept = ((3, 1.5), (7, -2.0))
    assert SamplingParams(logit_bias={7: -2, 3: 1.5}).logit_bias == kept
    assert SamplingParams(logit_bias={np.int64(7): np.float32(-2), 3: 1.5}).logit_bias == kept
    assert SamplingParams(logit_bias=kept).logit_bias == kept
    assert SamplingParams(logit_bias=None) == SamplingParams(logit_bias={}) == SamplingParams()
    for bad in ({-1: 1.0}, {1: 101.0}, {"1": 1.0}, {1: float("nan")}, {1: None}, 5, [1, 2], "ab"):
        with pytest.raises(
            InvalidRequestError, match=r"logit_bias must be a mapping of token ids, .*\[-100, 100\], got"
        ):
            SamplingParams(logit_bias=bad)
    with pytest.raises(InvalidRequestError, match=r"logit_bias must be of tokens in the vocabulary, \[0, .*got 100000"):
        generate(llm, logit_bias={100_000: 1.0})


MUTANTS = [
    ("stops at any time", "if self._num_tokens <= self._params.min_tokens:", "if False:"),
    ("one token early", "self._num_tokens <= self", "self._num_tokens < self"),
]


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=[name for name, *_ in MUTANTS])
def test_mutants_are_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase_features.stop_strings", old, new), check_stop_after)
