"""Speculative decoding: the same tokens as without, whoever guesses and whatever happens meanwhile."""

import pytest

from tests.engine.engines import make_engine, prompt_of, run, tokens_of
from twophase.core.sampling_params import SamplingParams
from twophase.engine.drafters import NgramDrafter
from twophase.engine.speculation import Speculator

LONG = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPTS = [prompt_of(i, length) for i, length in enumerate((3, 17, 1, 30, 8, 16))]


class Oracle:
    """A fake drafter that knows the outputs: guesses right, with planted mistakes at some positions of each run."""

    def __init__(self, outputs: dict[tuple[int, ...], list[int]], wrong_at=lambda place: False):
        self.outputs, self.wrong_at = outputs, wrong_at

    def note_plan(self, plan):
        pass

    def propose(self, requests):
        return [self._guess(request) for request in requests]

    def _guess(self, request):
        for prompt, output in self.outputs.items():
            if tuple(request.token_ids[: len(prompt)]) == prompt:
                start = len(request.token_ids) - len(prompt)
                right = output[start : start + request.chunk.num_drafts]
                return [(t + 1) % 131 if self.wrong_at(start + i) else t for i, t in enumerate(right)]
        return []

    def forget(self, seq_id):
        pass


def speculating(model, drafter=None, max_drafts=4, thrift=None, **options):
    speculator = Speculator(drafter or NgramDrafter(), max_drafts, thrift)
    return make_engine(model, speculator=speculator, **options)


def plain_outputs(model, params=LONG, prompts=PROMPTS, **options):
    return [tokens_of(output) for output in run(make_engine(model, **options), prompts, params)]


def oracle_for(prompts, outputs, wrong_at=lambda place: False):
    return Oracle({tuple(p["prompt_token_ids"]): out for p, out in zip(prompts, outputs, strict=True)}, wrong_at)


CIRCUMSTANCES = {
    "roomy": {},
    "chunked prefill": {"budget": 9, "max_num_seqs": 6},
    "preemption": {"num_blocks": 24},
    "preemption without prefix cache": {"num_blocks": 24, "prefix_caching": False},
    "swapping": {"num_blocks": 24, "num_swap_blocks": 24, "prefix_caching": False},
    "blocks of one token": {"block_size": 1, "num_blocks": 300},
    "blocks of sixteen": {"block_size": 16},
    "unchunked": {"chunked": False},
}


class TestSameTokens:
    @pytest.mark.parametrize("name", CIRCUMSTANCES)
    @pytest.mark.parametrize("drafter", ["ngram", "right", "mixed", "wrong"])
    def test_greedy(self, tiny_model, name, drafter):
        expected = plain_outputs(tiny_model)
        drafters = {
            "ngram": NgramDrafter(),
            "right": oracle_for(PROMPTS, expected),
            "mixed": oracle_for(PROMPTS, expected, lambda place: place % 7 in (2, 6)),
            "wrong": oracle_for(PROMPTS, expected, lambda place: True),
        }
        options = CIRCUMSTANCES[name]
        model = tiny_model
        if options.get("block_size", 4) != 4:
            from tests.engine.engines import with_backend
            from twophase.attention.torch_backend import TorchBackend

            model = with_backend(tiny_model, TorchBackend(tiny_model.backend.spec, options["block_size"]))
        engine = speculating(model, drafters[drafter], **options)
        assert [tokens_of(output) for output in run(engine, PROMPTS, LONG)] == expected
        stats = engine.stats()
        assert stats.num_output_tokens == 40 * len(PROMPTS)
        if drafter in ("right", "mixed"):
            assert stats.num_accepted_tokens > 0
        if drafter == "right":
            assert stats.num_accepted_tokens == stats.num_draft_tokens
        if drafter == "wrong":
            assert stats.num_draft_tokens > 0
            assert stats.num_accepted_tokens == 0
        if name.startswith("preemption"):
            assert stats.num_preemptions > 0
