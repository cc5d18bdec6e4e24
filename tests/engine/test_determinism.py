"""The determinism ladder: what a request's output may depend on, rung by rung, with a control that must fail.

Torch backend, fp32. Same work in the same company is bitwise equal. In other company, in chunks, over cached pages or
after a preemption the same sums are taken in another order (matrix products of other shapes, attention cut
elsewhere), so log-probabilities agree within a tolerance; tokens are equal all the same, greedy ones because the best
token leads by more, drawn ones because the uniforms do not depend on any of this.
"""

import pytest

from tests.engine.engines import make_engine, prompt_of, run, tokens_of
from tests.model.tiny import load_model, make_folder
from twophase.core.request import SamplingParams
from twophase.engine.runner import ModelRunner

# fp32 rounding (6e-8) over two layers of sums of ~80 terms of size ~10: measured up to 5e-6, so ten times that.
TOLERANCE = 5e-5

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=20)
DRAWN = SamplingParams(temperature=1.2, top_p=0.95, seed=11, max_tokens=16, ignore_eos=True, logprobs=20)
PROMPT = prompt_of(0, 29)
COMPANY = [prompt_of(seed, length) for seed, length in enumerate((3, 18, 40, 7), start=1)]


def alone(model, params):
    return run(make_engine(model), [PROMPT], params)[0]


def in_a_batch(model, params):
    return run(make_engine(model, budget=200), [*COMPANY[:2], PROMPT, *COMPANY[2:]], params)[2]


def in_chunks(model, params):
    engine = make_engine(model, budget=8)
    output = run(engine, [PROMPT], params)[0]
    assert engine.trace[1].chunks == (("0", 0, 8, 8),)
    return output


def over_cached_pages(model, params):
    engine = make_engine(model)
    run(engine, [PROMPT], params)
    output = run(engine, [PROMPT], params)[0]
    assert output.metrics.num_cached_tokens == 28
    return output


def after_preemptions(model, params):
    engine = make_engine(model, num_blocks=15, budget=64, prefix_caching=False)
    # It arrived last, so it is the one to give way.
    output = run(engine, [prompt_of(9, 16), PROMPT], params)[1]
    assert output.metrics.num_preemptions > 0
    return output


RUNGS = {
    alone: 0.0,
    in_a_batch: TOLERANCE,
    in_chunks: TOLERANCE,
    over_cached_pages: TOLERANCE,
    after_preemptions: TOLERANCE,
}


def check_rung(model, rung, params) -> None:
    expected, got = alone(model, params), rung(model, params)
    assert tokens_of(got) == tokens_of(expected)
    differences = []
    for ours, theirs in zip(got.outputs[0].logprobs, expected.outputs[0].logprobs, strict=True):
        by_id = dict(theirs.top)
        differences += [abs(ours.logprob - theirs.logprob), *(abs(x - by_id[i]) for i, x in ours.top if i in by_id)]
    assert max(differences) <= RUNGS[rung], f"log-probabilities differ by {max(differences):.2e}"


@pytest.fixture(scope="module", params=["dense", "experts"])
def model(request, tiny_model, tmp_path_factory):
    """An expert multiplies other rows at once in other company; routes are the same, and so are tokens."""
    if request.param == "dense":
        return tiny_model
    return load_model(make_folder("qwen3-moe", tmp_path_factory.mktemp("sparse"), eos_token_id=None)[0])


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("rung", RUNGS, ids=[rung.__name__ for rung in RUNGS])
def test_rung(model, rung, params):
    check_rung(model, rung, params)


def test_negative_control(tiny_model, monkeypatch):
    """Keys a thousandth off after each step, about what half-precision pages would lose, are noticed."""
    original, first = ModelRunner.run, []

    def run_with_spoilt_pages(self, chunks, score):
        first.append(self)
        if self is not first[0]:
            for layer in self.kv_cache.layers:
                layer.k.mul_(1.001)
        return original(self, chunks, score)

    monkeypatch.setattr(ModelRunner, "run", run_with_spoilt_pages)
    with pytest.raises(AssertionError, match=r"differ by|=="):
        check_rung(tiny_model, in_chunks, GREEDY)


class TestSeeds:
    """A seeded request draws the same tokens in any company; an unseeded one gets a seed of its own."""

    def drawn(self, model, prompts, params, **options):
        return [
            [list(completion.token_ids) for completion in output.outputs]
            for output in run(make_engine(model, **options), prompts, params)
        ]

    def test_reproducible_in_any_company_and_with_siblings(self, tiny_model):
        seeded = SamplingParams(seed=5, max_tokens=12, ignore_eos=True, n=3)
        other = SamplingParams(max_tokens=12, ignore_eos=True)
        (expected,) = self.drawn(tiny_model, [PROMPT], seeded)
        assert len({tuple(tokens) for tokens in expected}) == 3
        assert self.drawn(tiny_model, [*COMPANY, PROMPT], [other] * 4 + [seeded])[4] == expected
        assert self.drawn(tiny_model, [PROMPT, *COMPANY], [seeded] + [other] * 4, budget=9)[0] == expected
        assert self.drawn(tiny_model, [PROMPT, PROMPT], seeded) == [expected, expected]
        one = SamplingParams(seed=5, max_tokens=12, ignore_eos=True)
        assert self.drawn(tiny_model, [PROMPT], one)[0] == expected[:1]

    def test_without_a_seed_requests_differ_and_the_engines_seed_reproduces_them(self, tiny_model):
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        first = self.drawn(tiny_model, [PROMPT] * 3, params)
        assert len({tuple(tokens[0]) for tokens in first}) == 3
        assert self.drawn(tiny_model, [PROMPT] * 3, params) == first
        assert self.drawn(tiny_model, [PROMPT] * 3, params, seed=1) != first
