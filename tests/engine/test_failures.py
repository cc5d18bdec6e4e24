"""A fault fails one request: its blocks come back, and everyone else gets what they would have got without it."""

import pytest

from tests.engine.engines import check_idle, make_engine, prompt_of, run, tokens_of, with_backend
from tests.engine.faults import Broken, FaultyBackend, Suspect
from tests.engine.tokenizers_for_tests import byte_level
from twophase.core.request import SamplingParams
from twophase.engine import model_run
from twophase.engine.sampler import sample

CULPRIT = 1
PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((5, 19, 9, 14, 30))]
PARAMS = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
PREFILL = {"last": 19}
DECODE = {"first": 22}
SETTINGS = {
    "one step": {"budget": 200},
    "chunks": {"budget": 8},
    "pressure": {"budget": 16, "num_blocks": 17, "prefix_caching": False},
}


@pytest.fixture(scope="module")
def expected(tiny_model):
    return [tokens_of(output) for output in run(make_engine(tiny_model), PROMPTS, PARAMS)]


def faulty_engine(model, stage, suspect, **options):
    backend = FaultyBackend(model.backend, stage, suspect)
    engine = make_engine(with_backend(model, backend), **options)
    if isinstance(suspect, Suspect):
        suspect.engine = engine
    return engine, backend


def check_only_culprit_failed(outputs, expected, message: str, num_tokens: int) -> None:
    for i, output in enumerate(outputs):
        completion = output.outputs[0]
        if i != CULPRIT:
            assert (completion.finish_reason, completion.error) == ("length", None)
            assert tokens_of(output) == expected[i]
    assert outputs[CULPRIT].finished
    culprit = outputs[CULPRIT].outputs[0]
    assert culprit.finish_reason == "error"
    assert message in culprit.error
    assert list(culprit.token_ids) == expected[CULPRIT][:num_tokens]


def check_good_as_new(engine, expected) -> None:
    """The state is an idle engine's, and the culprit's own request, too, is served correctly now."""
    check_idle(engine)
    assert [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)] == expected


def test_under_pressure_sequences_are_preempted(tiny_model, expected):
    engine = make_engine(tiny_model, **SETTINGS["pressure"])
    assert [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)] == expected
    assert engine.stats().num_preemptions > 0


class TestForward:
    @pytest.mark.parametrize("stage", ["plan", "write", "write late", "attend"])
    @pytest.mark.parametrize("setting", SETTINGS)
    @pytest.mark.parametrize(("moment", "num_tokens"), [(PREFILL, 0), (DECODE, 3)], ids=["prefill", "decode"])
    def test_a_fault_fails_one_request(self, tiny_model, expected, stage, setting, moment, num_tokens):
        engine, backend = faulty_engine(tiny_model, stage, Suspect(str(CULPRIT), **moment), **SETTINGS[setting])
        outputs = run(engine, PROMPTS, PARAMS)
        check_only_culprit_failed(outputs, expected, f"Broken: planted in {stage}", num_tokens)
        backend.stage = "nowhere"
        check_good_as_new(engine, expected)

    def test_what_only_company_causes_fails_nobody(self, tiny_model, expected):
        """As when a large batch runs out of memory."""
        engine, backend = faulty_engine(
            tiny_model, "write late", lambda batch: len(batch.seq_lens_host) > 2, budget=200
        )
        assert [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)] == expected
        assert backend.num_raised > 0


class TestSampling:
    def fail_when(self, monkeypatch, is_culprit):
        def faulty_sample(logits, rows, before_wait):
            if any(is_culprit(row) for row in rows):
                raise Broken("planted in sample")
            return sample(logits, rows)

        monkeypatch.setattr(model_run, "sample", faulty_sample)

    @pytest.mark.parametrize("setting", SETTINGS)
    @pytest.mark.parametrize("position", [0, 1, 5])
    def test_a_fault_fails_one_request(self, tiny_model, expected, monkeypatch, setting, position):
        start = PROMPTS[CULPRIT]["prompt_token_ids"]
        self.fail_when(monkeypatch, lambda row: row.token_ids[:5] == start[:5] and row.position == position)
        engine = make_engine(tiny_model, **SETTINGS[setting])
        check_only_culprit_failed(run(engine, PROMPTS, PARAMS), expected, "Broken: planted in sample", position)
        monkeypatch.undo()
        check_good_as_new(engine, expected)

    def test_after_the_fork_one_completion_fails(self, tiny_model, monkeypatch):
        params = SamplingParams(n=3, seed=1, max_tokens=5, ignore_eos=True)
        (good,) = run(make_engine(tiny_model), [PROMPTS[0]], params)
        self.fail_when(monkeypatch, lambda row: row.first_index == 1 and row.position == 2)
        (output,) = run(make_engine(tiny_model), [PROMPTS[0]], params)
        assert [completion.finish_reason for completion in output.outputs] == ["length", "error", "length"]
        assert [output.outputs[i] == good.outputs[i] for i in (0, 2)] == [True, True]

    def test_before_the_completions_fork_all_of_them_fail(self, tiny_model, monkeypatch):
        self.fail_when(monkeypatch, lambda row: row.num_samples == 3)
        engine = make_engine(tiny_model)
        (output,) = run(engine, [PROMPTS[0]], SamplingParams(n=3))
        assert [completion.finish_reason for completion in output.outputs] == ["error"] * 3


class TestDetokenising:
    class Codec:
        """Breaks on one token, wherever it is."""

        def __init__(self, bad_id):
            self.bad_id = bad_id

        def encode(self, text, *, max_model_len=None):
            return byte_level().encode(text)

        def decode(self, ids, skip_special_tokens=True):
            if self.bad_id in ids:
                raise Broken("planted in decode")
            return byte_level().decode(ids, skip_special_tokens)

    @pytest.mark.parametrize("setting", SETTINGS)
    @pytest.mark.parametrize("position", [0, 3, 13])
    def test_a_fault_fails_one_request(self, tiny_model, expected, setting, position):
        # A token that the culprit makes there for the first time, and nobody else makes at all.
        bad_id = expected[CULPRIT][position]
        assert expected[CULPRIT].index(bad_id) == position
        assert not any(bad_id in expected[i] for i in range(len(PROMPTS)) if i != CULPRIT)
        assert not any(bad_id in prompt["prompt_token_ids"][-4:] for prompt in PROMPTS)
        codec = self.Codec(bad_id)
        engine = make_engine(tiny_model, codec=codec, **SETTINGS[setting])
        outputs = run(engine, PROMPTS, PARAMS)
        check_only_culprit_failed(outputs, expected, "Broken: planted in decode", position + 1)
        codec.bad_id = None
        check_good_as_new(engine, expected)
