"""Speculative decoding: the same tokens as without, whoever guesses and whatever happens meanwhile."""

from dataclasses import replace

import pytest
import torch

from tests.cache.integrity import check_integrity
from tests.engine.engines import check_idle, finish, make_engine, prompt_of, run, tokens_of
from tests.engine.speculating import (
    Answering,
    Oracle,
    drafting_with,
    in_blocks_of,
    plain_outputs,
    speculating,
)
from tests.engine.tokenizers_for_tests import byte_level
from tests.model.tiny import make_folder
from twophase.core.errors import ConfigError
from twophase.core.plan import SampledToken
from twophase.core.request import SamplingParams
from twophase.engine.sampler import SamplingError
from twophase.llm import LLM
from twophase_features.speculation.config import SpeculativeConfig
from twophase_features.speculation.drafters import NgramDrafter, NgramIndex, usable
from twophase_features.speculation.rejection import accepted_run
from twophase_tools.load.steps import num_decode_tokens

LONG = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = [prompt_of(i, length) for i, length in enumerate((3, 17, 1, 30, 8, 16))]

CIRCUMSTANCES = {
    "roomy": {},
    "preemption without prefix cache": {"num_blocks": 20, "prefix_caching": False},
    "offloading": {"num_blocks": 20, "num_host_blocks": 20},
    "blocks of one token": {"block_size": 1, "num_blocks": 300},
    "unchunked": {"chunked": False},
}


@pytest.fixture(scope="module")
def greedy(tiny_model):
    """The six outputs without speculation."""
    return plain_outputs(tiny_model, PROMPTS, LONG)


class TestSameTokens:
    @pytest.mark.parametrize("name", CIRCUMSTANCES)
    @pytest.mark.parametrize("drafter", ["n-gram", "mixed", "itself", "itself, slowly"])
    def test_greedy(self, tiny_model, greedy, name, drafter):
        options = CIRCUMSTANCES[name]
        block_size = options.get("block_size", 4)
        sizes = options.get("num_blocks", 96), block_size
        drafters = {
            "n-gram": lambda: NgramDrafter(),
            "mixed": lambda: Oracle(PROMPTS, greedy, lambda position: position % 7 in (2, 6)),
            "itself": lambda: drafting_with(tiny_model, *sizes),
            "itself, slowly": lambda: drafting_with(tiny_model, *sizes, max_catch_up=7),
        }
        engine = speculating(in_blocks_of(tiny_model, block_size), drafters[drafter](), **options)
        assert [tokens_of(output) for output in run(engine, PROMPTS, LONG)] == greedy
        stats = engine.stats()
        assert stats.num_output_tokens == 24 * len(PROMPTS)
        assert stats.num_draft_tokens > 0
        if drafter != "n-gram":
            assert stats.num_accepted_tokens > 0
        if drafter.startswith("itself"):  # its cache holds what the model's holds, whatever happened to the blocks
            assert stats.num_accepted_tokens == stats.num_draft_tokens
        for step in engine.trace:
            decodes = step.chunks[: step.num_decodes + step.num_verifying]
            assert num_decode_tokens(step) == sum(num_tokens for *_, num_tokens in decodes)
        if name.startswith("preemption"):
            assert stats.num_preemptions > 0

    @pytest.mark.parametrize("num_blocks", [96, 26])
    @pytest.mark.parametrize("drafter", ["n-gram", "itself"])
    def test_seeded_sampling_with_everything_a_request_can_ask_for(self, tiny_model, drafter, num_blocks):
        """The very same tokens and log-probabilities at every position: penalties, truncations and n > 1 included."""
        common = {"max_tokens": 20, "ignore_eos": True}
        params = [
            SamplingParams(temperature=1.0, seed=1, **common),
            SamplingParams(temperature=0.3, top_k=5, seed=2, logprobs=3, **common),
            SamplingParams(temperature=0, repetition_penalty=1.4, logprobs=1, **common),
            SamplingParams(temperature=0.8, top_p=0.7, seed=3, n=3, **common),
            SamplingParams(temperature=0.5, min_p=0.1, repetition_penalty=1.2, seed=4, logprobs=0, **common),
            SamplingParams(temperature=0.2, seed=5, stop_token_ids=(77, 12), max_tokens=20, min_tokens=4),
        ]
        plain = run(make_engine(tiny_model), PROMPTS, params)
        drafters = {"n-gram": NgramDrafter, "itself": lambda: drafting_with(tiny_model, num_blocks)}
        engine = speculating(tiny_model, drafters[drafter](), num_blocks=num_blocks)
        guessed = run(engine, PROMPTS, params)
        for alone, other in zip(plain, guessed, strict=True):
            for one, two in zip(alone.outputs, other.outputs, strict=True):
                assert (one.token_ids, one.finish_reason) == (two.token_ids, two.finish_reason)
                for a, b in zip(one.logprobs or (), two.logprobs or (), strict=True):
                    assert a.token_id == b.token_id
                    assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
                    assert [t for t, _ in a.top] == [t for t, _ in b.top]
        assert engine.stats().num_draft_tokens > 0
        if drafter == "itself":  # it draws with the same random numbers
            assert engine.stats().num_accepted_tokens == engine.stats().num_draft_tokens > 0


class TestWhereARunEnds:
    def test_a_stop_string_inside_a_run_drops_what_follows(self, tiny_model, greedy):
        codec = byte_level()
        (plain,) = run(make_engine(tiny_model, codec=codec), [PROMPTS[1]], LONG)
        text = plain.outputs[0].text
        for start in range(2, min(10, len(text) - 2)):
            params = replace(LONG, stop=text[start : start + 2], logprobs=0)
            (alone,) = run(make_engine(tiny_model, codec=codec), [PROMPTS[1]], params)
            engine = speculating(tiny_model, Oracle(PROMPTS, greedy), max_drafts=7, codec=codec)
            (output,) = run(engine, [PROMPTS[1]], params)
            one, two = alone.outputs[0], output.outputs[0]
            assert (two.text, two.token_ids, two.stop_reason) == (one.text, one.token_ids, one.stop_reason)
            assert len(two.logprobs) == len(two.token_ids) == engine.stats().num_output_tokens


class TestBrokenDrafters:
    @pytest.mark.parametrize(
        "answer",
        [
            lambda request: [330, 5],
            lambda request: [-1],
            lambda request: [5] * 99,
            lambda request: [10**12],
            lambda request: 1 // 0,
            lambda request: [1 // (len(request.token_ids) % 3)],
            lambda request: None,
        ],
    )
    def test_harm_nobody(self, tiny_model, greedy, answer):
        engine = speculating(tiny_model, Answering(answer))
        assert [tokens_of(output) for output in run(engine, PROMPTS, LONG)] == greedy

    def test_a_step_that_fails_with_drafts_is_tried_without(self, tiny_model, greedy, monkeypatch):
        engine = speculating(tiny_model, Oracle(PROMPTS, greedy))
        real = engine._runner.run

        def breaks_on_drafts(chunks, score):
            if any(chunk.num_drafts for chunk in chunks):
                raise RuntimeError("planted")
            return real(chunks, score)

        monkeypatch.setattr(engine._runner, "run", breaks_on_drafts)
        assert [tokens_of(output) for output in run(engine, PROMPTS, LONG)] == greedy
        assert engine.stats().num_accepted_tokens == 0

    @pytest.mark.parametrize("where", ["propose", "run", "amend"])
    def test_an_interrupted_step_is_repeated(self, tiny_model, greedy, where, monkeypatch):
        drafter = drafting_with(tiny_model)
        engine = speculating(tiny_model, drafter)
        owner = {"propose": drafter, "run": engine._runner, "amend": engine._scheduler}[where]
        cls, calls = type(owner), []
        real = getattr(cls, where)

        def interrupted(self, *args):
            if self is owner:
                calls.append(1)
                if len(calls) % 3 == 0:
                    real(self, *args)
                    raise KeyboardInterrupt
            return real(self, *args)

        monkeypatch.setattr(cls, where, interrupted)
        for i, prompt in enumerate(PROMPTS):
            engine.add_request(str(i), prompt, LONG)
        outputs = {}
        for _ in range(500):
            try:
                outputs |= {output.request_id: output for output in engine.step()}
            except KeyboardInterrupt:
                check_integrity(engine._scheduler.cache)
            if not engine.has_unfinished_requests():
                break
        assert [tokens_of(outputs[str(i)]) for i in range(len(PROMPTS))] == greedy
        assert engine.stats().num_accepted_tokens == engine.stats().num_draft_tokens > 0
        check_idle(engine)

    def test_aborted_between_steps_nothing_leaks(self, tiny_model):
        engine = speculating(tiny_model)
        for i, prompt in enumerate(PROMPTS):
            engine.add_request(str(i), prompt, LONG)
        for i in range(len(PROMPTS)):
            engine.step()
            engine.abort(str(i))
        finish(engine)
        assert not engine.speculator.drafter._indices


def test_an_error_counts_only_if_nothing_comes_before_it():
    error, token = SamplingError("planted"), (SampledToken(5),)
    assert accepted_run([error, token], [5]) is error
    assert accepted_run([token, error], [5]) == accepted_run([token, error], [6]) == token


def naive_lookup(token_ids, max_drafts, min_tokens, max_tokens):
    """By the definition: every place tried, from the end."""
    for size in range(min(max_tokens, len(token_ids)), min_tokens - 1, -1):
        for end in range(len(token_ids) - 1, size - 1, -1):
            if token_ids[end - size : end] == token_ids[-size:]:
                text = list(token_ids)
                for i in range(max_drafts):
                    text.append(text[end + i])
                return text[len(token_ids) :]
    return []


class TestNgramLookup:
    @pytest.mark.parametrize("seed", range(30))
    def test_finds_what_a_search_finds(self, seed):
        generator = torch.Generator().manual_seed(seed)
        sizes = (1, 3) if seed % 3 else (2, 4)
        index = NgramIndex(*sizes)
        text = torch.randint(0, 3 + seed % 4, (60,), generator=generator).tolist()
        length = 1
        while length <= len(text):
            assert index.lookup(text[:length], 5) == naive_lookup(text[:length], 5, *sizes)
            length += int(torch.randint(1, 5, (), generator=generator))

    def test_worked_examples(self):
        assert NgramIndex(1, 3).lookup([7, 1, 2, 3, 4, 1, 2], 3) == [3, 4, 1]
        assert NgramIndex(1, 3).lookup([5, 6, 5, 6], 3) == [5, 6, 5]
        assert NgramIndex(1, 3).lookup([1, 2, 3], 3) == NgramIndex(1, 3).lookup([4], 3) == []
        assert usable([3, 9, 4], 10, frozenset({9})) == [3, 9]
        assert usable([3, 12, 4], 10, frozenset({9})) == [3]


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"method": "medusa"}, "one of ngram, draft_model, got 'medusa'"),
            ({"num_speculative_tokens": 0}, "num_speculative_tokens must be a whole number >= 1 and <= 32 .*, got 0"),
            ({"num_speculative_tokens": 33}, "<= 32 .*, got 33"),
            ({"prompt_lookup_min": 4}, "got 4 > 3"),
            ({"method": "draft_model"}, "requires a model"),
            ({"model": "x"}, "other methods take none"),
        ],
    )
    def test_what_cannot_work_is_refused(self, options, words):
        with pytest.raises(ConfigError, match=words):
            SpeculativeConfig(**options)

    def test_another_vocabulary_is_refused(self, tiny_folder, tmp_path):
        make_folder("llama", tmp_path, vocab_size=99)
        config = SpeculativeConfig(method="draft_model", model=str(tmp_path))
        with pytest.raises(ConfigError, match="has 99 tokens, the model 330"):
            LLM(tiny_folder, num_kv_blocks=8, speculative_config=config)
