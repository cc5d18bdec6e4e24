"""Beam search in the engine finds what transformers' `generate(num_beams=...)` finds, whatever the engine does meanwhile."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch

import twophase.engine.beam_search as beam_search_module
import twophase.engine.engine as engine_module
from tests.engine.engines import BLOCK_SIZE, check_idle, finish, make_engine, prompt_of, run
from tests.model.tiny import load_model, make_folder
from tests.mutation import KillTable, Mutant
from tests.scheduling.harness import VOCAB_SIZE
from tests.scheduling.test_beams import beam_request, best_texts, logprob_of, room_of, stops_of
from twophase import LLM, BeamSearchParams, SamplingParams, StructuredOutputs
from twophase.core.errors import InvalidRequestError
from twophase.core.plan import SampledToken
from twophase.engine.beam_search import BeamSearch
from twophase.engine.sampler import SamplingError

# Logits agree with transformers' within 1e-4 (tests/model), so a log-probability does within twice that.
LOGPROB_TOLERANCE = 2e-4
LENGTHS = (1, 3, 4, 5, 17, 30)
EOS = frozenset(range(40, 60))  # so many that beams end early, and several in one step
FAMILIES = ("llama", "mistral", "gemma3")
WIDTHS = (1, 2, 4)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    folder, oracle = make_folder(request.param, tmp_path_factory.mktemp(request.param), eos_token_id=None)
    options = {"dtype": torch.float32, "device": torch.device("cpu"), "attention_backend": "torch"}
    return load_model(folder, block_size=BLOCK_SIZE, **options), oracle


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder, oracle = make_folder("llama", tmp_path_factory.mktemp("llama"), eos_token_id=None)
    options = {"dtype": torch.float32, "device": torch.device("cpu"), "attention_backend": "torch"}
    return load_model(folder, block_size=BLOCK_SIZE, **options), oracle


@torch.inference_mode()
def by_transformers(oracle, prompt, params: SamplingParams, eos=EOS, **options):
    """(tokens, score) of each beam, best first; tokens up to and with the first that ends it."""
    ids = torch.tensor([prompt["prompt_token_ids"]])
    found = oracle.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=params.n,
        num_return_sequences=params.n,
        max_new_tokens=params.max_tokens,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=sorted(eos) if eos else None,
        pad_token_id=130,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    results = []
    scores = found.sequences_scores if params.n > 1 else [None]
    for tokens, score in zip(found.sequences[:, ids.shape[1] :].tolist(), scores, strict=True):
        end = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
        results.append((tuple(tokens[:end]), None if score is None else score.item()))
    return results


def params_of(n, max_tokens=12, **options) -> SamplingParams:
    return SamplingParams(use_beam_search=True, n=n, max_tokens=max_tokens, temperature=0, **options)


def check(output, expected, params, eos=EOS) -> None:
    assert output.finished
    assert [completion.token_ids for completion in output.outputs] == [tokens for tokens, _ in expected]
    for completion, (tokens, score) in zip(output.outputs, expected, strict=True):
        length = len(tokens)
        assert completion.finish_reason == (
            "length" if length == params.max_tokens and tokens[-1] not in eos else "stop"
        )
        if score is not None:
            ours = completion.cumulative_logprob / length**params.length_penalty
            assert ours == pytest.approx(score, abs=LOGPROB_TOLERANCE * length ** (1 - params.length_penalty))


def check_family(model, oracle, lengths, length_penalties, early_stoppings) -> None:
    for (seed, length), penalty, stopping in product(enumerate(lengths), length_penalties, early_stoppings):
        prompt = prompt_of(seed, length)
        for width in WIDTHS:
            params = params_of(width, length_penalty=penalty, early_stopping=stopping)
            (output,) = run(make_engine(model, eos=EOS), [prompt], params)
            check(output, by_transformers(oracle, prompt, params), params)


def test_equal_to_transformers(case):
    check_family(*case, (1, 5, 17), length_penalties=[1.0, -1.0], early_stoppings=["never"])
    check_family(*case, (3, 4), length_penalties=[2.0, 0.0], early_stoppings=[False, True])


@pytest.mark.full
@pytest.mark.parametrize("length_penalty", [2.0, 1.0, 0.5, 0.0, -1.0])
def test_all_ways_to_stop(case, length_penalty):
    check_family(*case, LENGTHS, [length_penalty], [False, True, "never"])


PRESSED = {
    "chunks": {"budget": 8},
    "recompute": {"num_blocks": 28, "budget": 16, "prefix_caching": False},
    "recompute, hits": {"num_blocks": 28, "budget": 16},
    "swap": {"num_blocks": 28, "budget": 16, "num_swap_blocks": 40, "prefix_caching": False},
    "swap, little": {"num_blocks": 28, "budget": 16, "num_swap_blocks": 5},
    "one at a time": {"num_blocks": 28, "max_num_seqs": 4},
}


@pytest.mark.parametrize("how", PRESSED)
def test_whatever_the_engine_does_meanwhile(llama, how):
    """Beside each other and beside requests that draw, preempted or not."""
    model, oracle = llama
    prompts = [prompt_of(seed, length) for seed, length in enumerate(LENGTHS)]
    several = [params_of(width, 20, early_stopping="never") for width in (4, 2, 3, 1, 4, 2)]
    drawn = SamplingParams(n=2, seed=3, max_tokens=20, ignore_eos=True)
    few = frozenset({41, 43})  # so that texts are long
    alone = run(make_engine(model, eos=few), [prompts[2]], drawn)[0]
    expected = [by_transformers(oracle, *case, few) for case in zip(prompts, several, strict=True)]
    for _ in range(2):
        engine = make_engine(model, eos=few, **PRESSED[how])
        *outputs, last = run(engine, [*prompts, prompts[2]], [*several, drawn])
        for output, wanted, params in zip(outputs, expected, several, strict=True):
            check(output, wanted, params, few)
        assert [each.token_ids for each in last.outputs] == [each.token_ids for each in alone.outputs]
    num_preempted = sum(output.metrics.num_preemptions for output in outputs)
    assert (num_preempted > 0) == ("recompute" in how or "swap" in how)
    assert ("swap" in how) == any(step.blocks_swapped_in for step in engine.trace)


def test_temperature_divides_the_logits(llama):
    model, oracle = llama
    prompt = prompt_of(1, 9)
    head = oracle.lm_head.weight.data.clone()
    try:
        oracle.lm_head.weight.data.div_(0.5)
        expected = by_transformers(oracle, prompt, params_of(3))
    finally:
        oracle.lm_head.weight.data.copy_(head)
    params = replace(params_of(3), temperature=0.5)
    (output,) = run(make_engine(model, eos=EOS), [prompt], params)
    check(output, expected, params)


def test_min_tokens_as_in_transformers(llama):
    """Nothing ends too early, and the probability of what may not come is not shared out among the rest."""
    model, oracle = llama
    for seed, length in enumerate(LENGTHS):
        params = params_of(3, min_tokens=5)
        (output,) = run(make_engine(model, eos=EOS), [prompt_of(seed, length)], params)
        check(output, by_transformers(oracle, prompt_of(seed, length), params, min_new_tokens=5), params)
        assert min(len(each.token_ids) for each in output.outputs) >= 5


def test_stop_tokens_and_reasons(llama):
    """Stop ids end texts as end-of-text does, and say so; with `ignore_eos` the latter ends none."""
    model, oracle = llama
    prompt, ids = prompt_of(1, 3), tuple(sorted(EOS))
    ((*_, engine_eos), ignoring) = ids, params_of(4, stop_token_ids=ids[:-1])
    (output,) = run(make_engine(model, eos=frozenset({engine_eos})), [prompt], ignoring)
    check(output, by_transformers(oracle, prompt, ignoring), ignoring)
    ended = [each for each in output.outputs if each.finish_reason == "stop"]
    assert ended
    assert [each.stop_reason for each in ended] == [
        None if each.token_ids[-1] == engine_eos else each.token_ids[-1] for each in ended
    ]
    ignoring = params_of(4, ignore_eos=True)
    (output,) = run(make_engine(model, eos=EOS), [prompt], ignoring)
    assert [each.finish_reason for each in output.outputs] == ["length"] * 4


def test_logprobs_of_each_token(llama):
    model, _ = llama
    (output,) = run(make_engine(model, eos=EOS), [prompt_of(1, 9)], params_of(3, logprobs=2))
    for each in output.outputs:
        assert [entry.token_id for entry in each.logprobs] == list(each.token_ids)
        assert sum(entry.logprob for entry in each.logprobs) == pytest.approx(each.cumulative_logprob)
        assert all(len(entry.top) == 2 and entry.top[0][1] >= entry.logprob for entry in each.logprobs)


def held_blocks(model, params, num_steps: int) -> int:
    """Blocks in use after so many steps on a prompt of ten full blocks."""
    engine = make_engine(model)
    engine.add_request("a", prompt_of(1, 40), params)
    for _ in range(num_steps):
        engine.step()
    return engine.stats().cache.num_in_use


def test_beams_share_blocks(llama):
    """Completions that are drawn share their prompt; beams besides what they have in common after it."""
    model, _ = llama
    width, num_steps = 4, 17  # 16 tokens computed after the prompt: 4 blocks
    drawn = SamplingParams(n=width, seed=1, temperature=1.5, max_tokens=30, ignore_eos=True)
    assert held_blocks(model, drawn, num_steps) == 10 + width * 4
    assert width * held_blocks(model, SamplingParams(max_tokens=30, ignore_eos=True), num_steps) == width * (10 + 4)
    assert held_blocks(model, params_of(width, 30, ignore_eos=True), num_steps) < 10 + 2 * 4


def test_abort_returns_the_beams_and_frees_them(llama):
    model, _ = llama
    for num_steps in range(5):
        engine = make_engine(model, budget=8)
        engine.add_request("a", prompt_of(1, 15), params_of(3, ignore_eos=True))
        assert [engine.step() for _ in range(num_steps)] == [[]] * num_steps  # only the end of a search is known
        output = engine.abort("a")
        assert [each.finish_reason for each in output.outputs] == ["abort"] * 3
        assert [len(each.token_ids) for each in output.outputs] == [max(0, num_steps - 1)] * 3
        assert finish(engine) == {}


def test_a_fault_in_one_beam_ends_the_search_alone(llama, monkeypatch):
    model, _ = llama
    prompts = [prompt_of(1, 9), prompt_of(2, 9)]
    expected = run(make_engine(model, eos=EOS), prompts, params_of(3))
    real = engine_module.sample

    def sample(logits, rows):
        results = real(logits, rows)
        bad = [r for r, row in enumerate(rows) if row.position == 2 and row.first_index == 1]
        for r in bad[:1]:
            results[r] = SamplingError("planted")
        return results

    monkeypatch.setattr(engine_module, "sample", sample)
    first, second = run(make_engine(model, eos=EOS), prompts, params_of(3))
    assert [each.error for each in first.outputs] == ["SamplingError: planted"] * 3
    assert [each.token_ids for each in second.outputs] == [each.token_ids for each in expected[1].outputs]


def test_a_fault_in_the_search_ends_it_alone(llama, monkeypatch):
    model, _ = llama

    def choose(self, candidates):
        raise RuntimeError("planted")

    monkeypatch.setattr(BeamSearch, "choose", choose)
    drawn = SamplingParams(seed=1, max_tokens=5, ignore_eos=True)
    first, second = run(make_engine(model), [prompt_of(1, 9), prompt_of(2, 9)], [params_of(3), drawn])
    assert [each.error for each in first.outputs] == ["RuntimeError: planted"] * 3
    assert second.outputs[0].finish_reason == "length"


@pytest.fixture(scope="module")
def llm(tiny_folder):
    return LLM(tiny_folder, device="cpu", dtype="float32", num_kv_blocks=64, max_model_len=64, block_size=4)


class TestLLM:
    PARAMS = BeamSearchParams(beam_width=3, max_tokens=9, length_penalty=0.5)

    def test_its_texts_and_scores(self, llm):
        outputs = llm.beam_search(["Once", {"prompt_token_ids": [5, 9]}], self.PARAMS)
        assert [output.prompt for output in outputs] == ["Once", None]
        requests = llm.generate(["Once", {"prompt_token_ids": [5, 9]}], self.PARAMS.as_sampling_params())
        for output, request in zip(outputs, requests, strict=True):
            scores = [each.score for each in output.sequences]
            assert scores == sorted(scores, reverse=True)
            for each, completion in zip(output.sequences, request.outputs, strict=True):
                assert (each.tokens, each.text) == (completion.token_ids, completion.text)
                assert each.score == pytest.approx(each.cum_logprob / len(each.tokens) ** 0.5)
                assert each.text == llm.tokenizer.decode(each.tokens)
        check_idle(llm.engine)

    def test_one_beam_is_greedy(self, llm):
        (output,) = llm.beam_search("Once", BeamSearchParams(beam_width=1, max_tokens=9))
        (greedy,) = llm.generate("Once", SamplingParams(temperature=0, max_tokens=9))
        assert output.sequences[0].tokens == greedy.outputs[0].token_ids

    def test_one_beam_can_be_streamed_whole(self, llm):
        params = BeamSearchParams(beam_width=1, max_tokens=9).as_sampling_params()
        assert "".join(llm.stream("Once", params)) == llm.generate("Once", params)[0].outputs[0].text

    def test_a_form_with_fewer_texts_than_beams(self, llm):
        """They are found, the likelier one first; the others' places say that there are no more."""
        form = StructuredOutputs(choice=["ab", "b"])
        params = SamplingParams(use_beam_search=True, n=3, max_tokens=9, structured_outputs=form)
        (output,) = llm.generate("Once", params)
        found = [each for each in output.outputs if each.finish_reason == "stop"]
        assert {each.text for each in found} <= {"ab", "b"}
        assert len(found) >= 2
        assert all("the beam search found" in each.error for each in output.outputs[len(found) :])

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: BeamSearchParams(beam_width=0, max_tokens=3), "beam_width must be a whole number >= 1"),
            (lambda: BeamSearchParams(beam_width=2, max_tokens=0), "max_tokens must be a whole number >= 1"),
            (lambda: params_of(2, early_stopping="soon"), "early_stopping must be True, False or 'never', got 'soon'"),
            (lambda: params_of(2, length_penalty=float("nan")), "length_penalty must be a finite number"),
            (lambda: params_of(2, stop="a"), r"use_beam_search and stop=\['a'\] contradict each other"),
        ],
    )
    def test_what_is_refused(self, make, message):
        with pytest.raises(InvalidRequestError, match=message):
            make()

    def test_too_wide(self, llm):
        with pytest.raises(InvalidRequestError, match="so n must be at most max_num_seqs"):
            llm.beam_search("Once", BeamSearchParams(beam_width=10_000, max_tokens=3))


def check_rules(module) -> None:
    """Searches over a fake model, each from its definition; half of them begin again in the middle."""
    check_few_texts(module)
    for seed in range(150):
        rng = random.Random(seed)
        search_options = {
            "length_penalty": rng.choice([-1, 0, 1, 2]),
            "early_stopping": rng.choice([True, False, "never"]),
            "stop_token_ids": rng.sample(range(1, VOCAB_SIZE), rng.randint(0, 7)),
        }
        request = beam_request(f"r{seed}", 3, rng.randint(1, 12), rng.randint(1, 5), **search_options)
        if rng.random() < 0.3:
            request = replace(request, sampling_params=replace(request.sampling_params, ignore_eos=True))
        search = module.BeamSearch(request.sampling_params, stops_of(request), room_of(request, 64))
        texts, restart_at = {(): request.sampling_params.n}, rng.choice([None, 1, 2, 3])
        while not search.is_over:
            chosen = search.choose({text: candidates_of(request, text, search.num_candidates) for text in texts})
            texts = Counter((*text, token.token_id) for text, tokens in chosen.items() for token in tokens)
            assert sum(texts.values()) == (0 if search.is_over else request.sampling_params.n)
            assert all(any(beam.ids[: len(text)] == text for beam in search.beams) for text in texts)
            if search.num_tokens == restart_at and not search.is_over:
                restart_at, texts = None, {common_beginning(texts): request.sampling_params.n}
        assert [beam.ids for beam in search.results] == best_texts(request, 64), f"seed {seed}"
        for beam in search.results:
            assert beam.finish_reason == ("stop" if beam.ids[-1] in stops_of(request) else "length")


def common_beginning(texts):
    texts = list(texts)
    return next(texts[0][:i] for i in range(len(texts[0]), -1, -1) if all(t[:i] == texts[0][:i] for t in texts))


def check_few_texts(module) -> None:
    """One token may come, and the third ends it: the beam stands for all, also when it is led."""
    token = SampledToken(7, -1.0)
    search = module.BeamSearch(params_of(3, max_tokens=3), frozenset(), 3)
    assert search.choose({(): [token]}) == {(): (token,) * 3}
    assert search.choose({(7,): [token]}) == {(7,): (token,) * 3}
    assert search.choose({(): [token]}) == {(): (token,) * 3}
    assert search.choose({(7,): [token]}) == {(7,): (token,) * 3}
    assert [beam.ids for beam in search.results] == [(7, 7)]
    assert search.choose({(7, 7): [token]}) == {(7, 7): ()}
    assert ([beam.ids for beam in search.results], search.is_over) == ([(7, 7, 7)], True)


def candidates_of(request, text, count: int):
    """The best tokens after a text, as the sampler gives them."""
    tokens = [SampledToken(t, logprob_of(t, request.prompt_token_ids + text)) for t in range(VOCAB_SIZE)]
    return sorted(tokens, key=lambda token: -token.logprob)[:count]


def test_the_rules():
    check_rules(beam_search_module)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("scores are not summed", "self.logprob + token.logprob, finish", "token.logprob, finish"),
        ("no length penalty", "max(1, len(self.tokens)) ** length_penalty", "max(1, len(self.tokens))"),
        ("the end token is not counted", "max(1, len(self.tokens))", "max(1, len(self.tokens) - 1)"),
        (
            "enough is measured without a penalty",
            "self.beams[0].logprob / length**penalty",
            "self.beams[0].logprob / length",
        ),
        ("any end counts", "elif place < self._width:", "else:"),
        ("ends are not kept best first", "-beam.score(", "beam.score("),
        ("an end goes on", "if token.token_id in self._stop_token_ids:", "if False:"),
        ("a token too many", "self.num_tokens >= self._max_tokens", "self.num_tokens > self._max_tokens"),
        ("stops at the first end", "if len(self.ended) < self._width:", "if not self.ended:"),
        ("never stops early", "early_stopping is True", "early_stopping is None"),
        ("one beam goes on after its end", " or self._width == 1", ""),
        ("patience is forgotten", "self._max_tokens if is_patient", "self.num_tokens if is_patient"),
        ("patient whatever the penalty", '== "never" and penalty > 0', '== "never"'),
        ("too few candidates", "max(2, 1 + len(self._stop_token_ids)) *", "1 *"),
        ("too few beams", "going_on[self._width :]", "going_on[max(1, self._width - 1) :]"),
        ("the worst go on", "heapq.nlargest", "heapq.nsmallest"),
        ("led to another beam's token", "beam.tokens[len(ids)] for", "beam.tokens[-1] for"),
        ("led along all beams", "if beam.ids[: len(ids)] == ids]", "if True]"),
        ("chosen anew when led", "if any(len(ids) < self.num_tokens", "if False and any(len(ids) < self.num_tokens"),
        ("places are lost", "chosen[:1] * (self._width - len(chosen))", "chosen[:0]"),
        ("places are lost when led", "tokens[:1] * (self._width - len(self.beams))", "tokens[:0]"),
    ],
    ids=lambda value: value if " " in value else "",
)
def test_mutants_are_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase.engine.beam_search", old, new), check_rules)
