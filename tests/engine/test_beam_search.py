"""Beam search finds what transformers' `generate(num_beams=...)` finds, whatever the engine does meanwhile."""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch

import twophase_features.beam_search.search as beam_search_module
from tests.engine.engines import BLOCK_SIZE, check_idle, prompt_of
from tests.model.tiny import make_folder
from tests.mutation import KillTable, Mutant
from twophase import LLM, BeamSearchParams
from twophase.core.errors import InvalidRequestError
from twophase.core.request import Request
from twophase_features.beam_search.search import search_beams

# Logits agree with transformers' within 1e-4 (tests/model), so a log-probability does within twice that.
LOGPROB_TOLERANCE = 2e-4
EOS = frozenset(range(40, 60))  # so many that beams end early, and several in one step
OPTIONS = {
    "device": "cpu",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "block_size": BLOCK_SIZE,
    "num_kv_blocks": 96,
    "max_model_len": 128,
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder, oracle = make_folder("llama", tmp_path_factory.mktemp("llama"), eos_token_id=None)
    return LLM(folder, **OPTIONS), oracle


@torch.inference_mode()
def by_transformers(oracle, prompt, params: BeamSearchParams):
    """(tokens, score) of each beam, best first; tokens up to and with the first that ends it."""
    ids = torch.tensor([prompt["prompt_token_ids"]])
    found = oracle.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        max_new_tokens=params.max_tokens,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=sorted(EOS),
        pad_token_id=130,
        output_scores=True,
        return_dict_in_generate=True,
    )
    results = []
    scores = found.sequences_scores if params.beam_width > 1 else [None]
    for tokens, score in zip(found.sequences[:, ids.shape[1] :].tolist(), scores, strict=True):
        end = next((i + 1 for i, token in enumerate(tokens) if token in EOS), len(tokens))
        results.append((tuple(tokens[:end]), None if score is None else score.item()))
    return results


def params_of(width, max_tokens=12, **options) -> BeamSearchParams:
    return BeamSearchParams(beam_width=width, max_tokens=max_tokens, **options)


def search(llm, prompts, params, eos=EOS, **options):
    """As `LLM.beam_search`, for a model with these end-of-text ids."""
    sampling_params = params.as_sampling_params()
    requests = [Request("", tuple(each["prompt_token_ids"]), sampling_params, eos_token_ids=eos) for each in prompts]
    ask = partial(llm.generate, use_tqdm=False)
    outputs = search_beams(requests, params, **({"ask": ask, "max_model_len": 128} | options))
    check_idle(llm.engine)
    return outputs


def check(output, expected, params) -> None:
    assert [found.tokens for found in output.sequences] == [tokens for tokens, _ in expected]
    for found, (tokens, score) in zip(output.sequences, expected, strict=True):
        length = len(tokens)
        assert found.finish_reason == ("length" if length == params.max_tokens and tokens[-1] not in EOS else "stop")
        assert found.score == pytest.approx(found.cum_logprob / length**params.length_penalty)
        if score is not None:
            tolerance = LOGPROB_TOLERANCE * length ** (1 - params.length_penalty)
            assert found.score == pytest.approx(score, abs=tolerance)


def texts_of(outputs) -> list[list[tuple[int, ...]]]:
    return [[found.tokens for found in output.sequences] for output in outputs]


@pytest.mark.parametrize(
    ("length", "penalty", "stopping"),
    [(1, 1.0, "never"), (5, 1.0, False), (17, -1.0, "never"), (3, 2.0, False), (4, 0.0, True)],
)
def test_equal_to_transformers(llama, length, penalty, stopping):
    llm, oracle = llama
    prompt = prompt_of(length, length)
    for width in (1, 2, 4):
        params = params_of(width, length_penalty=penalty, early_stopping=stopping)
        (output,) = search(llm, [prompt], params)
        check(output, by_transformers(oracle, prompt, params), params)


def test_stop_tokens_and_reasons(llama):
    """Stop ids end texts as end-of-text does, and say so; with `ignore_eos` the latter ends none."""
    llm, oracle = llama
    prompt, (*ids, engine_eos) = prompt_of(1, 3), sorted(EOS)
    params = params_of(4, stop_token_ids=ids)
    (output,) = search(llm, [prompt], params, eos=frozenset({engine_eos}))
    check(output, by_transformers(oracle, prompt, params), params)
    ended = [found for found in output.sequences if found.finish_reason == "stop"]
    assert ended
    assert [found.stop_reason for found in ended] == [
        None if found.tokens[-1] == engine_eos else found.tokens[-1] for found in ended
    ]
    (output,) = search(llm, [prompt], params_of(4, ignore_eos=True))
    assert [found.finish_reason for found in output.sequences] == ["length"] * 4


def test_the_length_of_the_context_ends_texts(llama):
    llm, _ = llama
    (output,) = llm.beam_search([prompt_of(1, 125)], params_of(2, 9), use_tqdm=False)
    assert [(len(found.tokens), found.finish_reason) for found in output.sequences] == [(3, "length")] * 2


def test_logprobs_of_each_token(llama):
    llm, _ = llama
    (output,) = search(llm, [prompt_of(1, 9)], params_of(3))
    for found in output.sequences:
        assert [entry.token_id for entry in found.logprobs] == list(found.tokens)
        assert sum(entry.logprob for entry in found.logprobs) == pytest.approx(found.cum_logprob)
        assert all((entry.token_id, entry.logprob) in entry.top for entry in found.logprobs)


def test_a_round_computes_a_block_of_each_beam_at_most(llama):
    """What beams and rounds have in common comes from the prefix cache."""
    llm, _ = llama
    num_before = llm.engine.stats().num_steps
    (output,) = search(llm, [prompt_of(7, 40)], params_of(4, 16, ignore_eos=True))
    first, *others = llm.engine.trace[num_before:]
    assert [tokens for *_, tokens in first.chunks] == [40]
    assert [len(step.chunks) for step in others] == [4] * 15
    assert max(tokens for step in others for *_, tokens in step.chunks) == BLOCK_SIZE
    assert output.metrics.num_prompt_tokens == 40
    times = output.metrics.token_times_s
    assert (len(times), list(times), times[0]) == (16, sorted(times), output.metrics.first_token_s)
    assert output.metrics.first_scheduled_s <= times[0] <= times[-1] <= output.metrics.finished_s


def test_a_failed_request_ends_its_search_alone(llama):
    """What had ended by then stays as it is; the beams have the error."""
    llm, _ = llama
    prompts = [prompt_of(1, 9), prompt_of(2, 9)]
    params = params_of(3, early_stopping="never")
    expected = search(llm, prompts, params)

    def ask(asked, next_token):
        outputs = llm.generate(asked, next_token, use_tqdm=False)
        if len(asked[0]["prompt_token_ids"]) == 12:  # the fourth round's
            broken = replace(outputs[0].outputs[0], error="planted", finish_reason="error", logprobs=None)
            outputs[0] = replace(outputs[0], outputs=(broken,))
        return outputs

    first, second = search(llm, prompts, params, ask=ask)
    assert texts_of([second]) == texts_of(expected[1:])
    left = [found for found in first.sequences if found.finish_reason == "error"]
    assert left
    assert all((found.error, len(found.tokens)) == ("planted", 3) for found in left)
    assert all(found.error is None and len(found.tokens) <= 3 for found in first.sequences if found not in left)


@pytest.fixture(scope="module")
def llm(tiny_folder):
    return LLM(tiny_folder, device="cpu", dtype="float32", num_kv_blocks=64, max_model_len=64, block_size=4)


class TestLLM:
    PARAMS = BeamSearchParams(beam_width=3, max_tokens=9, length_penalty=0.5)

    def test_a_stop_token_is_left_out_of_the_text_or_kept(self, llm):
        (found,) = llm.beam_search("Once", BeamSearchParams(beam_width=1, max_tokens=3))[0].sequences
        params = BeamSearchParams(beam_width=1, max_tokens=9, stop_token_ids=found.tokens[1:2])
        for keeps, shown in ((False, found.tokens[:1]), (True, found.tokens[:2])):
            (output,) = llm.beam_search("Once", replace(params, include_stop_str_in_output=keeps))
            assert output.sequences[0].tokens == found.tokens[:2]
            assert output.sequences[0].text == llm.tokenizer.decode(shown)

    def test_salts_keep_searches_apart(self, llm):
        prompts = [{"prompt_token_ids": [7] * 30, "cache_salt": salt} for salt in ("a", "b", "a")]
        cached = [llm.beam_search(each, self.PARAMS)[0].metrics.num_cached_tokens for each in prompts]
        assert cached == [0, 0, 28]

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: params_of(0), "beam_width must be a whole number >= 1"),
            (lambda: params_of(2, max_tokens=0), "max_tokens must be a whole number >= 1"),
            (lambda: params_of(2, min_tokens=13), "min_tokens must not exceed max_tokens"),
            (lambda: params_of(2, early_stopping="soon"), "early_stopping must be True, False or 'never', got 'soon'"),
            (lambda: params_of(2, length_penalty=float("nan")), "length_penalty must be a finite number"),
        ],
    )
    def test_what_is_refused(self, make, message):
        with pytest.raises(InvalidRequestError, match=message):
            make()

    @pytest.mark.parametrize(
        ("prompts", "params", "message"),
        [
            (["a", [5] * 64], params_of(2), "64 tokens"),
            (["a"], params_of(2, stop_token_ids=[999_999]), "stop_token_ids must be of tokens in the vocabulary"),
        ],
    )
    def test_what_is_refused_before_anything_runs(self, llm, prompts, params, message):
        num_steps = llm.engine.stats().num_steps
        with pytest.raises(InvalidRequestError, match=message):
            llm.beam_search(prompts, params)
        assert llm.engine.stats().num_steps == num_steps


# -- the rules, over a fake model: the candidates of each text are told by a hash

VOCAB_SIZE = 17


def logprob_of(token_id: int, text) -> float:
    return -(1 + hash((token_id, *text)) % 9973) / 997


def best_texts(prompt, params: BeamSearchParams, stops, longest: int) -> list[tuple[int, ...]]:
    """The best texts, by the definition: all texts of the next length, their best n, and those that ended."""
    width, beams, ended = params.beam_width, [(0.0, ())], []
    while True:
        texts = [(p + logprob_of(t, prompt + text), (*text, t)) for p, text in beams for t in range(VOCAB_SIZE)]
        length = len(texts[0][1])
        texts = [each for each in texts if length > params.min_tokens or each[1][-1] not in stops]
        texts.sort(key=lambda each: -each[0])
        is_end = {text: text[-1] in stops or length == longest for _, text in texts}
        ended += [(p / length**params.length_penalty, text) for p, text in texts[:width] if is_end[text]]
        ended = sorted(ended, key=lambda each: -each[0])[:width]
        beams = [(p, text) for p, text in texts if not is_end[text]][:width]
        if not beams:
            return [text for _, text in ended]
        if len(ended) == width:
            hoped = longest if params.early_stopping == "never" and params.length_penalty > 0 else length
            is_hopeless = beams[0][0] / hoped**params.length_penalty <= ended[-1][0]
            if params.early_stopping is True or width == 1 or is_hopeless:
                return [text for _, text in ended]


def check_rules(module) -> None:
    check_few_texts(module)
    check_impatience(module)
    for seed in range(300):
        rng = random.Random(seed)
        prompt, longest = (seed,), rng.randint(1, 12)
        stops = frozenset(rng.sample(range(VOCAB_SIZE), rng.randint(0, 7)))
        params = params_of(
            rng.randint(1, 5),
            longest,
            length_penalty=rng.choice([-1, 0, 1, 2]),
            early_stopping=rng.choice([True, False, "never"]),
            min_tokens=rng.choice([0, 0, rng.randint(0, longest)]),
        )
        search = module.BeamSearch(params, stops, longest)
        while not search.is_over:
            assert {len(beam.ids) for beam in search.beams} == {search.num_tokens}
            search.advance([candidates_of(prompt + beam.ids, search.num_candidates) for beam in search.beams])
        assert [beam.ids for beam in search.results] == best_texts(prompt, params, stops, longest), f"seed {seed}"
        for beam in search.results:
            assert beam.finish_reason == ("stop" if beam.ids[-1] in stops else "length")


def check_few_texts(module) -> None:
    """One token may come, and the third ends the text: one is found. What has no probability does not come."""
    search = module.BeamSearch(params_of(3, max_tokens=3), frozenset(), 3)
    for i in range(3):
        assert [beam.ids for beam in search.results] == [(7,) * i]
        search.advance([[(7, -1.0), (8, float("-inf"))]])
    assert ([beam.ids for beam in search.results], search.is_over) == ([(7, 7, 7)], True)


def check_impatience(module) -> None:
    """Where short texts are favoured, 'never' too compares with the best beam as it is now; here it then ends better."""
    search = module.BeamSearch(params_of(2, length_penalty=-1, early_stopping="never"), {1}, 12)
    search.advance([[(1, -1.0), (2, -1.1), (3, -5.0)]])
    search.advance([[(4, -0.1), (1, -5.0), (5, -6.0)], [(4, -9.0)]])
    assert not search.is_over
    assert [beam.score(-1.0) for beam in search.ended] == pytest.approx([-1.0, -12.2])
    search.advance([[(1, -0.1), (4, -3.0)], [(4, -9.0)]])
    assert [beam.ids for beam in search.results] == [(1,), (2, 4, 1)]


def candidates_of(text, count: int) -> list[tuple[int, float]]:
    """The best tokens after a text, as a model gives them."""
    tokens = [(token_id, logprob_of(token_id, text)) for token_id in range(VOCAB_SIZE)]
    return sorted(tokens, key=lambda token: -token[1])[:count]


def test_the_rules():
    check_rules(beam_search_module)


MUTANTS = [
    ("scores are not summed", "self.logprob + token.logprob, finish", "token.logprob, finish"),
    ("no length penalty", "max(1, len(self.tokens)) ** length_penalty", "max(1, len(self.tokens))"),
    ("the end token is not counted", "max(1, len(self.tokens))", "max(1, len(self.tokens) - 1)"),
    ("enough is measured without a penalty", "self.beams[0].logprob / length**penalty", "self.beams[0].logprob / length"),
    ("any end counts", "reason is not None and place < self._width", "reason is not None"),
    ("ends are not kept best first", "-beam.score(", "beam.score("),
    ("an end goes on", "if token_id in self._stop_token_ids:", "if False:"),
    ("a token too many", "self.num_tokens >= self._max_tokens", "self.num_tokens > self._max_tokens"),
    ("stops at the first end", "if len(self.ended) < self._width:", "if not self.ended:"),
    ("never stops early", "early_stopping is True", "early_stopping is None"),
    ("one beam goes on after its end", " or self._width == 1", ""),
    ("patience is forgotten", "self._max_tokens if is_patient", "self.num_tokens if is_patient"),
    ("patient whatever the penalty", '== "never" and penalty > 0', '== "never"'),
    ("too few candidates", "self._width + len(self._stop_token_ids)", "self._width"),
    ("too few beams", "len(going_on) < self._width:", "len(going_on) < max(1, self._width - 1):"),
    ("the worst go on", "-(text[0].logprob + text[1].logprob)", "text[0].logprob + text[1].logprob"),
    ("an end too early", "self.num_tokens <= self._params.min_tokens", "self.num_tokens < self._params.min_tokens"),
    ("the impossible comes", "logprob > -math.inf and ", ""),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase_features.beam_search.search", old, new), check_rules)
