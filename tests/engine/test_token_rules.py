"""What a request may ask of its tokens besides chance: a least number of them, biases, penalties for repeating."""

import numpy as np
import pytest
import torch

from tests.engine.sampling_oracle import sample_of
from tests.mutation import KillTable, Mutant, installed
from twophase import LLM, SamplingParams, SpeculativeConfig, StructuredOutputs
from twophase.core.errors import InvalidRequestError
from twophase.engine import model_run, sampler
from twophase.engine.detokenizer import Detokenizer
from twophase.engine.sampler import SampleRow
from twophase_features import score_edits, stop_strings
from twophase_features.score_edits import bias_of

PROMPT = {"prompt_token_ids": [40, 41, 42, 43, 44]}
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(tiny_folder):
    return LLM(tiny_folder, num_kv_blocks=64, block_size=4)


def generate(llm, **params):
    (output,) = llm.generate(PROMPT, SamplingParams(**(GREEDY | params)), use_tqdm=False)
    return output.outputs


def row_of(position=0, token_ids=(), banned=(), num_samples=1, **params) -> SampleRow:
    made = SamplingParams(**params)
    return SampleRow(
        made, 0, 0, position, num_samples, token_ids, banned=banned, bias=bias_of(made) if made.logit_bias else None
    )


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

    def test_guessed_tokens_obey_too(self, tiny_folder, llm):
        (free,) = generate(llm)
        stops = sorted(set(free.token_ids[2:5]))
        config = SpeculativeConfig(method="draft_model", model=str(tiny_folder), disable_when_losing=False)
        guessing = LLM(tiny_folder, num_kv_blocks=64, block_size=4, speculative_config=config)
        for least in (3, 7):
            expected, got = (generate(each, stop_token_ids=stops, min_tokens=least) for each in (llm, guessing))
            assert expected == got
        assert guessing.engine.stats().num_accepted_tokens > 0

    def test_refusals(self):
        with pytest.raises(InvalidRequestError, match=r"min_tokens must not exceed max_tokens, got 17 > 16"):
            SamplingParams(min_tokens=17)
        with pytest.raises(InvalidRequestError, match=r"structured_outputs and min_tokens=3 contradict"):
            SamplingParams(min_tokens=3, structured_outputs=StructuredOutputs(regex="a"))


def check_ban(module=score_edits):
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])
    rows = [row_of(banned=frozenset({1}), temperature=0), row_of(temperature=0)]
    assert [tokens[0].token_id for tokens in sample_of(module)(logits, rows)] == [2, 1]
    assert logits.tolist() == [[1.0, 3.0, 2.0]] * 2


def test_a_ban_is_of_its_own_row():
    check_ban()


class Characters:
    """Token i is the character i."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(chr, ids))


def check_stop_after(module=stop_strings):
    with installed(module):
        text = Detokenizer(Characters(), SamplingParams(stop="ab", min_tokens=3), [65])
    # "ab" at 0 is early; "b" at 3 completes one that began early, which does not count; the next is whole.
    matched = [text.append(ord(character)) for character in "abaxab"]
    assert matched == [None] * 5 + ["ab"]
    assert text.text == "abax"


def check_boundary(module=stop_strings):
    with installed(module):
        text = Detokenizer(Characters(), SamplingParams(stop="b", min_tokens=2), [65])
    assert [text.append(ord(character)) for character in "abb"] == [None, None, "b"]


def test_a_stop_string_begins_after_the_last_early_token():
    check_stop_after()
    check_boundary()


def check_penalties(module=score_edits):
    """By hand: counted in the completion, not in the prompt, and of its own row alone."""
    logits = torch.tensor([[4.0, 3.9, 3.0]] * 4)
    common = {"temperature": 0, "logprobs": 0}
    rows = [
        row_of(position=2, token_ids=[2, 2, 0, 0], presence_penalty=0.05, **common),
        row_of(position=2, token_ids=[2, 2, 0, 0], frequency_penalty=0.06, **common),
        row_of(position=3, token_ids=[2, 1, 0, 1], frequency_penalty=0.7, presence_penalty=0.2, **common),
        row_of(position=0, token_ids=[0, 0], presence_penalty=2.0, frequency_penalty=2.0, **common),
    ]
    # 4 - 0.05; 4 - 0.12 < 3.9; 4 - 0.9 and 3.9 - 1.6, so 3.1 is best; nothing yet.
    assert [tokens[0].token_id for tokens in sample_of(module)(logits, rows)] == [0, 1, 0, 0]
    rows[2] = row_of(position=3, token_ids=[2, 1, 0, 1], frequency_penalty=0.9, presence_penalty=0.2, **common)
    (tokens,) = sample_of(module)(logits[2:3], rows[2:3])
    assert tokens[0].token_id == 2, "4 - 1.1 and 3.9 - 2 are below 3"
    assert tokens[0].logprob == pytest.approx(float(logits[2].log_softmax(0)[2])), "they describe the model"
    raised = row_of(position=1, token_ids=[2], presence_penalty=-2.0, **common)
    assert sample_of(module)(logits[:1], [raised])[0][0].token_id == 2
    assert logits.tolist() == torch.tensor([[4.0, 3.9, 3.0]] * 4).tolist()


def test_presence_and_frequency_penalties():
    check_penalties()


def check_bias(module=score_edits):
    logits = torch.tensor([[4.0, 3.0, 2.0]] * 3)
    common = {"temperature": 0, "logprobs": 0}
    rows = [
        row_of(logit_bias={2: 2.5}, **common),
        row_of(**common),
        row_of(logit_bias={0: -3, 2: 2.5}, repetition_penalty=2.0, token_ids=[2], **common),
    ]
    drawn = [tokens[0] for tokens in sample_of(module)(logits, rows)]
    assert [each.token_id for each in drawn] == [2, 0, 1], "1, 3 and 4.5 / 2: the bias comes before the penalty"
    assert drawn[0].logprob == pytest.approx(float(logits[0].log_softmax(0)[2])), "they describe the model"
    assert logits.tolist() == [[4.0, 3.0, 2.0]] * 3


def test_biases_by_hand():
    check_bias()


def test_biases_are_made_once_for_all_steps_and_completions(llm, monkeypatch):
    """Of 16 x 300 biases a step in Python, each took as long as a step."""
    made, used = [], []
    monkeypatch.setattr(score_edits, "bias_of", lambda params: made.append(bias_of(params)) or made[-1])
    monkeypatch.setattr(model_run, "sample", lambda logits, rows: used.extend(rows) or sampler.sample(logits, rows))
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


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "module", "old", "new", "check"),
    [
        ("biases of all rows", "score_edits", "scores[at] += torch", "scores[:, at[1]] += torch", check_bias),
        ("edits in place", "score_edits", "scores = logits.clone()", "scores = logits", check_bias),
        (
            "each edit starts anew",
            "score_edits",
            "edit(scores, arguments)",
            "edit(scores := logits.clone(), arguments)",
            check_bias,
        ),
        (
            "biases last",
            "score_edits",
            "    (_add_bias, lambda row: row.bias),\n    (_penalise_repetition, lambda row: row if row.params.repetition_penalty != 1 else None),\n",
            "    (_penalise_repetition, lambda row: row if row.params.repetition_penalty != 1 else None),\n    (_add_bias, lambda row: row.bias),\n",
            check_bias,
        ),
        ("prompts are counted", "score_edits", "row.token_ids[-row.position :]", "row.token_ids", check_penalties),
        ("presence forgotten", "score_edits", "row.params.presence_penalty + row", "row", check_penalties),
        (
            "frequency is presence",
            "score_edits",
            "* torch.from_numpy(counts)",
            "* torch.ones(len(counts))",
            check_penalties,
        ),
        (
            "bans of all rows",
            "score_edits",
            "scores[_places(banned, scores.device)]",
            "scores[:, _places(banned, scores.device)[1]]",
            check_ban,
        ),
        (
            "stops at any time",
            "stop_strings",
            "if self._num_tokens <= self._params.min_tokens:",
            "if False:",
            check_stop_after,
        ),
        ("one token early", "stop_strings", "self._num_tokens <= self", "self._num_tokens < self", check_boundary),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 18 else "",
)
def test_mutants_are_killed(name, module, old, new, check):
    package = "twophase_features" if module in ("score_edits", "stop_strings") else "twophase.engine"
    KillTable.record(Mutant(name, f"{package}.{module}", old, new), check)


def test_a_top_k_of_minus_one_keeps_all():
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0) == SamplingParams()
    with pytest.raises(
        InvalidRequestError, match=r"top_k must be a whole number >= 0 \(0 or -1 keeps every token\), got -2"
    ):
        SamplingParams(top_k=-2)


def test_prompts_of_token_ids_as_they_are(llm):
    params = SamplingParams(**GREEDY)
    lists = [[40, 41, 42], (43, 44)]
    expected = llm.generate([{"prompt_token_ids": ids} for ids in lists], params)
    got = llm.generate(lists, params)
    assert [each.outputs for each in got] == [each.outputs for each in expected]
    assert [each.prompt_token_ids for each in got] == [(40, 41, 42), (43, 44)]
    mixed = llm.generate([[40, 41, 42], "dog"], params)
    assert mixed[0].outputs == expected[0].outputs
    assert next(iter(llm.stream([40, 41, 42], params)))
    with pytest.raises(InvalidRequestError, match="at least one token, got none"):
        llm.generate([[]], params)


@pytest.mark.unchecked_types
def test_one_flat_list_is_no_prompt(llm):
    with pytest.raises(InvalidRequestError, match=r"a prompt is text or .* or a list of ids, got 40"):
        llm.generate([40, 41, 42])
    with pytest.raises(InvalidRequestError, match="must be a whole number in"):
        llm.generate([["a", "b"]])
