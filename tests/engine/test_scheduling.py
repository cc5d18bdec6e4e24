"""Policies and swapping on a real model: whoever is scheduled when, the tokens are those of running alone."""

import pytest
import torch

from tests.engine.engines import check_idle, finish, make_engine, prompt_of, run, tokens_of
from tests.engine.faults import Broken
from twophase import LLM
from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.cache.swap_space import SwapSpace
from twophase.core.errors import ConfigError, InvalidRequestError, PolicyError
from twophase.core.plan import BlockSwap
from twophase.core.sampling_params import SamplingParams
from twophase.scheduling.policy import Policy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.policies.fair_shares import FairPolicy
from twophase_features.policies.request_level import DynamicPolicy, StaticPolicy
from twophase_features.policies.round_robin import RotatingPolicy
from twophase_features.policies.whole_prompts import ContinuousPolicy, PrefillFirstPolicy

PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((5, 19, 9, 14, 30))]
PARAMS = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
PRESSURE = {"budget": 32, "num_blocks": 17, "prefix_caching": False}
POLICIES = [
    ChunkedPrefillPolicy(max_tokens=5),
    ContinuousPolicy(),
    PrefillFirstPolicy(),
    PrefillFirstPolicy(max_stalled_steps=1),
    StaticPolicy(batch_size=3),
    DynamicPolicy(batch_size=9, timeout_s=0),
    DeadlinePolicy(),
    RotatingPolicy(chunk_tokens=4, max_tokens=12),
    FairPolicy(),
]


@pytest.fixture(scope="module")
def expected(tiny_model):
    return [tokens_of(run(make_engine(tiny_model), [prompt], PARAMS)[0]) for prompt in PROMPTS]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("num_swap_blocks", [0, 40])
def test_outputs_do_not_depend_on_the_policy(tiny_model, expected, policy, num_swap_blocks):
    engine = make_engine(tiny_model, policy=policy, num_swap_blocks=num_swap_blocks, **PRESSURE)
    assert [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)] == expected


def test_what_was_swapped_out_comes_back_and_is_not_computed_again(tiny_model, expected):
    engine = make_engine(tiny_model, num_swap_blocks=40, **PRESSURE)
    assert [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)] == expected
    assert sum(step.blocks_swapped_out for step in engine.trace) > 0
    assert sum(step.blocks_swapped_in for step in engine.trace) > 0
    computed = sum(tokens for step in engine.trace for *_, tokens in step.chunks)
    needed = sum(len(p["prompt_token_ids"]) + PARAMS.max_tokens - 1 for p in PROMPTS)
    assert computed == needed


def test_a_fault_while_blocks_come_back_fails_that_request_alone(tiny_model, expected):
    engine = make_engine(tiny_model, num_swap_blocks=40, **PRESSURE)
    space = engine._runner._swap_space
    restore, culprits = space.restore, []

    def faulty(moves):
        culprits.extend(moves[:1] if not culprits else [])
        if any(move in culprits for move in moves):
            raise Broken("planted in restore")
        restore(moves)

    space.restore = faulty
    outputs = run(engine, PROMPTS, PARAMS)
    failed = [i for i, output in enumerate(outputs) if output.outputs[0].finish_reason == "error"]
    assert len(failed) == 1
    assert "planted in restore" in outputs[failed[0]].outputs[0].error
    for i, output in enumerate(outputs):
        assert tokens_of(output) == expected[i][: len(tokens_of(output))]
        assert i in failed or tokens_of(output) == expected[i]
    check_idle(engine)


def test_a_fault_while_blocks_are_saved_loses_nothing(tiny_model, expected):
    """The step is lost and raises; the next ones recompute what could not be saved."""
    engine = make_engine(tiny_model, num_swap_blocks=40, **PRESSURE)
    space, raised = engine._runner._swap_space, []
    save = space.save

    def faulty(moves):
        if not raised:
            raised.append(moves)
            raise Broken("planted in save")
        save(moves)

    space.save = faulty
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, PARAMS)
    with pytest.raises(Broken):
        finish(engine)
    outputs = finish(engine)
    assert [tokens_of(outputs[str(i)]) for i in range(len(PROMPTS))] == expected


class TestSwapSpace:
    def test_moves_whole_blocks_of_every_layer_there_and_back(self):
        spec = KVCacheSpec(2, 3, 16, 4, torch.float32, "int8")
        cache = KVCache(spec, 5, torch.device("cpu"))
        for tensor in cache.storage:
            tensor.copy_(torch.randint(-100, 100, tensor.shape))
        before = [tensor.clone() for tensor in cache.storage]
        space = SwapSpace(cache, 2)
        space.save([BlockSwap(3, 0), BlockSwap(1, 1)])
        for tensor in cache.storage:
            tensor.zero_()
        space.restore([BlockSwap(0, 1), BlockSwap(4, 0)])
        for tensor, old in zip(cache.storage, before, strict=True):
            assert torch.equal(tensor[:, 0], old[:, 1])
            assert torch.equal(tensor[:, 4], old[:, 3])
            assert not tensor[:, 1:4].any()


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
        config = llm.scheduler.config
        assert (config.preemption, config.num_swap_blocks, config.watermark) == ("swap", 32, 0.25)
        assert LLM(tiny_folder, num_kv_blocks=32, preemption_mode="swap", num_swap_blocks=7)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"preemption_mode": "drop"}, "'recompute' or 'swap', got 'drop'"),
            ({"num_swap_blocks": 4}, "sizes the host memory"),
            ({"preemption_mode": "swap", "num_swap_blocks": 0}, "a whole number >= 1, got 0"),
            ({"admission_watermark": 1}, r"in \[0, 1\), got 1"),
            ({"policy": ContinuousPolicy(), "scheduler_factory": print}, "give one of them"),
        ],
    )
    def test_options_that_cannot_work_are_refused(self, tiny_folder, options, said):
        with pytest.raises(ConfigError, match=said):
            LLM(tiny_folder, num_kv_blocks=32, **options)


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

    def test_what_is_said_beside_the_prompt_counts_first(self, tiny_model):
        engine = make_engine(tiny_model, policy=FairPolicy())
        engine.add_request("a", {"prompt_token_ids": [5], "tenant": "prompt's"}, PARAMS, tenant="given")
        engine.add_request("b", {"prompt_token_ids": [5], "tenant": "prompt's"}, PARAMS)
        sequences = engine._scheduler.sequences.values()
        assert [sequence.request.tenant for sequence in sequences] == ["given", "prompt's"]

    @pytest.mark.unchecked_types
    def test_a_tenant_is_text(self, tiny_model):
        engine = make_engine(tiny_model)
        with pytest.raises(InvalidRequestError, match="tenant must be text"):
            engine.add_request("a", {"prompt_token_ids": [5], "tenant": 5}, PARAMS)
