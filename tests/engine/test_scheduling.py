"""Policies and swapping on a real model: whoever is scheduled when, the tokens are those of running alone."""

import pytest

from tests.cache.shadow import ShadowKV
from tests.engine.engines import BLOCK_SIZE, check_idle, make_engine, prompt_of, run, tokens_of
from tests.engine.faults import Broken
from twophase import LLM
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError, PolicyError
from twophase.core.plan import BlockKey
from twophase.core.request import SamplingParams
from twophase.scheduling.policy import Policy
from twophase_features.offloading.host_memory import HostMemoryTier
from twophase_features.policies.fair_shares import FairPolicy
from twophase_features.policies.request_level import DynamicPolicy

PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((5, 19, 9, 14, 30))]
PARAMS = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
PRESSURE = {"budget": 32, "num_blocks": 17, "prefix_caching": False}


@pytest.fixture(scope="module")
def expected(tiny_model):
    return [tokens_of(run(make_engine(tiny_model), [prompt], PARAMS)[0]) for prompt in PROMPTS]


def test_what_was_offloaded_comes_back_and_is_not_computed_again(tiny_model, expected):
    engine = make_engine(tiny_model, num_host_blocks=40, **PRESSURE | {"prefix_caching": True, "num_blocks": 11})
    assert [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)] == expected
    assert sum(step.blocks_offloaded for step in engine.trace) > 0
    assert sum(step.blocks_loaded for step in engine.trace) > 0
    computed = sum(tokens for step in engine.trace for *_, tokens in step.chunks)
    needed = sum(len(p["prompt_token_ids"]) + PARAMS.max_tokens - 1 for p in PROMPTS)
    num_preemptions = sum(len(step.preempted) for step in engine.trace)
    assert needed <= computed < needed + num_preemptions * BLOCK_SIZE, (
        "of a block that is not full, tokens are computed"
    )


@pytest.mark.parametrize("call", ["save", "restore"])
def test_a_fault_while_blocks_are_moved_costs_no_request(tiny_model, expected, call, caplog):
    """They are computed in place of being loaded, and the log says why."""
    engine = make_engine(tiny_model, num_host_blocks=40, **PRESSURE | {"prefix_caching": True, "num_blocks": 11})
    tier = engine._scheduler.cache.tier

    def faulty(moves):
        raise Broken(f"planted in {call}")

    tier._blocks = tier._blocks._replace(**{call: faulty})
    assert [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)] == expected
    assert f"planted in {call}" in caplog.text
    check_idle(engine)


class TestHostMemoryTier:
    def test_the_block_used_longest_ago_is_given_up(self):
        tier = HostMemoryTier(2)
        a, b, c = (BlockKey(bytes([i]), b"") for i in range(3))
        assert tier.store([a, b], [0, 1]) == 2
        assert tier.match([a, c]) == 1
        assert tier.store([c], [2]) == 1
        assert [tier.match([key]) for key in (a, b, c)] == [1, 0, 1]

    def test_more_than_it_holds_at_once(self):
        """The first of these are given up for the last, and not copied over each other."""
        shadow = ShadowKV(1)
        tier, keys = HostMemoryTier(2), [BlockKey(bytes([i]), b"") for i in range(5)]
        tier.attach(shadow)
        shadow.slots = {i: 10 + i for i in range(5)}
        assert tier.store(keys, range(5)) == 2
        assert tier.load(keys[3:], [0, 1]) == 2
        assert (shadow.slots[0], shadow.slots[1]) == (13, 14)

    def test_belongs_to_one_engine(self):
        tier = HostMemoryTier(2)
        tier.attach(ShadowKV(1))
        with pytest.raises(ConfigError, match="another engine"):
            tier.attach(ShadowKV(1))
        with pytest.raises(ConfigError, match="at least 1 block, got num_blocks=0"):
            HostMemoryTier(0)


class TestLLM:
    def test_a_policy_that_waits_is_waited_for(self, tiny_folder):
        """Nobody else comes: the batch of one starts when its time is up."""
        llm = LLM(tiny_folder, policy=DynamicPolicy(batch_size=2, timeout_s=0.05), num_kv_blocks=32)
        (output,) = llm.generate("ab", SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
        assert output.metrics.first_scheduled_s - output.metrics.arrival_s >= 0.05
        assert len(output.outputs[0].token_ids) == 3
        assert all(step.chunks for step in llm.engine.trace), "a step that did nothing is none"

    def test_a_policy_that_never_schedules_is_an_error_and_the_engine_can_be_used_again(self, tiny_folder):
        class Idle(Policy):
            def rank(self, sequence):
                return (sequence.seq_id,)

            def plan(self, step):
                pass

        llm = LLM(tiny_folder, policy=Idle(), num_kv_blocks=32)
        with pytest.raises(PolicyError, match="it would hang"):
            llm.generate("ab")
        assert not llm.engine.has_unfinished_requests()

    def test_swapping_and_admission_are_options(self, tiny_folder):
        llm = LLM(tiny_folder, num_kv_blocks=32, preemption_mode="swap", admission_watermark=0.25)
        assert (llm.scheduler.cache.tier.num_blocks, llm.scheduler.config.watermark) == (32, 0.25)
        llm = LLM(tiny_folder, num_kv_blocks=32, preemption_mode="swap", num_swap_blocks=7)
        assert llm.scheduler.cache.tier.num_blocks == 7
        tier = HostMemoryTier(5)
        assert LLM(tiny_folder, num_kv_blocks=32, kv_tier=tier).scheduler.cache.tier is tier

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"kv_tier": HostMemoryTier(1), "preemption_mode": "swap"}, "give one of them"),
            ({"kv_tier": HostMemoryTier(1), "enable_prefix_caching": False}, "leave enable_prefix_caching on"),
            ({"preemption_mode": "swap", "enable_prefix_caching": False}, "leave enable_prefix_caching on"),
            ({"preemption_mode": "swap", "cache_factory": print}, "leave cache_factory out"),
        ],
    )
    def test_options_that_cannot_work_together_are_refused(self, options, said):
        with pytest.raises(ConfigError, match=said):
            EngineConfig(**options)


class TestTenants:
    def order(self, llm, prompts) -> str:
        """Of the requests that ended, the first letter of whose they are."""
        before = len(llm.engine.trace)
        llm.generate(prompts, SamplingParams(max_tokens=3, temperature=0, ignore_eos=True), use_tqdm=False)
        ends = [int(request_id) % len(prompts) for step in llm.engine.trace[before:] for request_id, _ in step.finished]
        return "".join(prompts[index]["tenant"][0] for index in ends)

    def test_a_prompt_says_whose_it_is(self, tiny_folder):
        prompts = [{"prompt_token_ids": [5, 6, i], "tenant": "busy"} for i in range(6)]
        prompts += [{"prompt": "Hello", "tenant": "calm", "cache_salt": "c"} for _ in range(2)]
        options = {"num_kv_blocks": 32, "max_num_seqs": 1, "device": "cpu"}
        assert self.order(LLM(tiny_folder, **options), prompts) == "bbbbbbcc"
        assert self.order(LLM(tiny_folder, policy=FairPolicy(), **options), prompts).index("c") < 3
