"""Prefill and decode apart, in one process: the tokens of a single engine, the same pages, and never a block too many."""

import random
import sys
from dataclasses import replace

import pytest
import torch

from tests.engine.engines import prompt_of
from tests.engine.faults import FaultyBackend, Suspect
from tests.parallel import two_engines
from tests.parallel.two_engines import OPTIONS, TwoEngines
from twophase import LLM, SamplingParams
from twophase.attention.torch_backend import TorchBackend
from twophase.core.errors import ConfigError, InvalidRequestError, PeerLostError
from twophase_features.parallel._protocol import Cancel, Done, Grant, Pages, Received, Submit
from twophase_features.parallel._transfers import TransferClock
from twophase_features.policies.request_level import DynamicPolicy

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
LENGTHS = (1, 3, 4, 5, 16, 17, 40)  # below, at and above a block; over several chunks of 16


def prompts_of(lengths=LENGTHS):
    return [prompt_of(i, length) for i, length in enumerate(lengths)]


def expected(folder, prompts, params, **options):
    return LLM(folder, **(OPTIONS | options)).generate(prompts, params, use_tqdm=False)


def completions(outputs):
    return [output.outputs for output in outputs]


PARAMS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(temperature=1.0, seed=7, max_tokens=8, top_p=0.9, ignore_eos=True),
    "unseeded": SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True),
    "penalty": replace(GREEDY, repetition_penalty=1.3),
    "several": SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=6, ignore_eos=True),
    "one token": replace(GREEDY, max_tokens=1),
}


class TestEqualTokens:
    @pytest.mark.parametrize("name", PARAMS)
    def test_as_a_single_engine(self, folder, name):
        prompts, params = prompts_of(), PARAMS[name]
        engines = TwoEngines(folder, prefill={"max_num_batched_tokens": 16, "seed": 1})
        assert completions(engines.generate(prompts, params)) == completions(expected(folder, prompts, params))

    def test_logprobs_of_the_first_token_come_along(self, folder):
        params = replace(GREEDY, logprobs=2)
        outputs, reference = TwoEngines(folder).generate(prompts_of(), params), expected(folder, prompts_of(), params)
        for ours, theirs in zip(outputs, reference, strict=True):
            for here, there in zip(ours.outputs[0].logprobs, theirs.outputs[0].logprobs, strict=True):
                assert (here.token_id, len(here.top)) == (there.token_id, 2)
                assert here.logprob == pytest.approx(there.logprob, abs=1e-4)  # batches differ, so rounding does

    @pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8_e4m3", "bfloat16"])
    def test_with_other_pages(self, folder, kv_cache_dtype):
        prompts = prompts_of()
        engines = TwoEngines(folder, kv_cache_dtype=kv_cache_dtype)
        outputs = engines.generate(prompts, GREEDY)
        assert completions(outputs) == completions(expected(folder, prompts, GREEDY, kv_cache_dtype=kv_cache_dtype))
        assert completions(outputs) != completions(expected(folder, prompts, replace(GREEDY, seed=1, temperature=2.0)))

    def test_text_and_stop_strings(self, tiny_folder):
        options = {"skip_tokenizer_init": False, "max_model_len": 200}
        prompts = ["The quick brown fox", "naïve café. " * 3, "1"]
        params = SamplingParams(temperature=0, max_tokens=20)
        plain = expected(tiny_folder, prompts, params, **options)
        stop = plain[0].outputs[0].text[4:6]
        params = [replace(params, stop=stop), params, params]
        outputs = TwoEngines(tiny_folder, **options).generate(prompts, params)
        assert completions(outputs) == completions(expected(tiny_folder, prompts, params, **options))
        assert outputs[0].outputs[0].stop_reason == stop

    def test_a_stop_token_as_the_very_first(self, folder):
        first = expected(folder, prompts_of([9]), GREEDY)[0].outputs[0].token_ids[0]
        params = replace(GREEDY, stop_token_ids=(first,))
        outputs = TwoEngines(folder).generate(prompts_of([9]), params)
        assert completions(outputs) == completions(expected(folder, prompts_of([9]), params))
        assert outputs[0].outputs[0].finish_reason == "stop"

    def test_the_llm_uses_it_as_its_engine(self, folder):
        """`LLM.generate` with its own loop: what a user calls."""
        engines = TwoEngines(folder)
        step = engines.engine.step
        engines.decode.engine = engines.engine
        engines.engine.step = lambda: (engines.worker.turn(), step())[1]
        outputs = engines.decode.generate(prompts_of(), GREEDY, use_tqdm=False)
        assert completions(outputs) == completions(expected(folder, prompts_of(), GREEDY))
        engines.worker.turn()
        engines.check_idle()


class TestPages:
    @pytest.mark.parametrize("kv_cache_dtype", ["float32", "int8"])
    def test_both_sides_hold_the_same_bits(self, folder, kv_cache_dtype):
        """When a prompt is done, and before anybody decodes: whole pages, the last partial one and scales included."""
        engines = TwoEngines(folder, kv_cache_dtype=kv_cache_dtype, prefill={"max_num_batched_tokens": 16})
        engines.decode.generate([prompt_of(99, 11)], GREEDY, use_tqdm=False)  # other block ids than on the other side
        checked = []

        def compare(message):
            if isinstance(message, Done):
                here = engines.engine._receiver._incoming[message.request_id].block_ids
                there = engines.worker._outgoing[message.request_id].table.block_ids
                assert list(here) != there
                for left, right in zip(engines.decode.kv_cache.storage, engines.prefill.kv_cache.storage, strict=True):
                    assert torch.equal(left[:, list(here)], right[:, there])
                assert engines.prefill.kv_cache.storage[0][:, there].float().abs().sum() > 0
                checked.append(len(here))

        engines.to_decode.before = compare
        engines.generate(prompts_of(), GREEDY)
        assert checked == [-(-length // 4) for length in LENGTHS]

    def test_a_layer_travels_before_the_next_is_computed(self, folder):
        events = []
        engines = TwoEngines(folder)
        forward = engines.prefill.model.backend.write
        engines.prefill.model.backend.write = lambda *args: (events.append("computed"), forward(*args))[1]
        send_layer = engines.to_decode.send_layer
        engines.to_decode.send_layer = lambda *args: (events.append("sent"), send_layer(*args))[1]
        engines.generate(prompts_of([17]), GREEDY)
        assert events == ["computed", "sent"] * 2

    def test_each_chunk_sends_the_blocks_it_fills(self, folder):
        engines = TwoEngines(folder, prefill={"max_num_batched_tokens": 10, "max_num_seqs": 1})
        engines.generate([prompt_of(0, 23)], GREEDY)
        sent = [said.ranges for said in engines.to_decode.said if isinstance(said, Pages)]
        assert [(each.first_block, each.num_blocks) for (each,) in sent] == [(0, 2), (2, 3), (5, 1)]

    def test_known_prefixes_do_not_travel(self, folder):
        engines = TwoEngines(folder)
        prompt = prompt_of(0, 18)["prompt_token_ids"]
        first = engines.generate([{"prompt_token_ids": prompt}], GREEDY)
        assert engines.to_decode.blocks_sent() == 5
        longer = {"prompt_token_ids": [*prompt, 5, 6, 7, 8]}
        outputs = engines.generate([longer], GREEDY)
        # Four full blocks are known there since, and on this side as well.
        assert engines.to_decode.blocks_sent() == 5 + 2
        assert outputs[0].metrics.num_cached_tokens == 16
        assert completions([*first, *outputs]) == completions(
            expected(folder, [{"prompt_token_ids": prompt}, longer], GREEDY)
        )

    def test_a_prefix_known_on_the_decode_side_alone(self, folder):
        engines = TwoEngines(folder, prefill={"enable_prefix_caching": False})
        prompt = prompt_of(0, 18)
        engines.generate([prompt], GREEDY)
        outputs = engines.generate([prompt], GREEDY)
        assert engines.to_decode.blocks_sent() == 5 + 1
        assert outputs[0].metrics.num_cached_tokens == 0
        assert completions(outputs) == completions(expected(folder, [prompt], GREEDY))

    @pytest.mark.parametrize("place", ["prompt", "argument"])
    def test_tenants_share_no_pages_on_either_side(self, folder, place):
        """A salt in the prompt, or beside it, holds on both sides: a tenant hits its own prompt, nobody else's."""
        engines, ids = TwoEngines(folder), prompt_of(0, 18)["prompt_token_ids"]

        def num_cached(name, salt):
            prompt = {"prompt_token_ids": ids} | ({"cache_salt": salt} if place == "prompt" else {})
            engines.engine.add_request(name, prompt, GREEDY, cache_salt=salt if place == "argument" else "")
            return engines.finish()[name].metrics.num_cached_tokens

        salts = ("alice", "bob", "", "alice", "bob", "")
        assert [num_cached(str(i), salt) for i, salt in enumerate(salts)] == [0, 0, 0, 16, 16, 16]

    def test_bytes_per_token(self, folder):
        engines = TwoEngines(folder, kv_cache_dtype="int8")
        engines.generate([prompt_of(0, 18)], GREEDY)
        (record,), (done,) = take_transfers(engines)
        # 5 blocks of 4 tokens, 2 layers, K and V, 6 heads of 16 bytes and a scale of 4.
        assert record.num_bytes == 5 * 4 * 2 * 2 * 6 * (16 + 4)
        assert done.prefill_s > 0


def take_transfers(engines):
    listen = engines.engine._listen
    engines.engine._listen = lambda timeout_s: (engines.worker.turn(), listen(0.0))[1]
    try:
        return engines.engine.take_transfers()
    finally:
        engines.engine._listen = listen


class TestRoom:
    def test_a_full_decode_side_holds_up_the_prefill_side(self, folder):
        """Room for one prompt and its output there: the others wait, with their blocks, and all complete."""
        prompts = prompts_of([15, 14, 13, 16, 9])
        engines = TwoEngines(folder, decode={"num_kv_blocks": 6}, prefill={"num_kv_blocks": 9})
        outputs = engines.generate(prompts, GREEDY)
        assert completions(outputs) == completions(expected(folder, prompts, GREEDY))
        assert any(isinstance(said, Grant) for said in engines.to_prefill.said)

    def test_prompts_are_computed_while_they_wait_for_room(self, folder):
        engines = TwoEngines(folder, decode={"num_kv_blocks": 6}, prefill={"num_kv_blocks": 9})
        for i, prompt in enumerate(prompts_of([16, 16, 16])):
            engines.engine.add_request(str(i), prompt, GREEDY)
        engines.worker.turn()
        stats = engines.prefill.engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.cache.num_in_use) == (0, 1, 8)  # two held, one not let in
        engines.worker.turn()  # nothing fits, and that is no error
        assert engines.finish()["2"].finished

    def test_a_worker_with_nothing_to_compute_sleeps(self, folder):
        """Before any prompt comes, and under back-pressure: a message wakes it, no clock does."""
        engines = TwoEngines(folder, decode={"num_kv_blocks": 6}, prefill={"num_kv_blocks": 9})

        def waits_s():
            return engines.back.first_asked_s(lambda: engines.worker.turn(1.0))

        assert waits_s() == 1.0
        for i, prompt in enumerate(prompts_of([16, 16, 16])):
            engines.engine.add_request(str(i), prompt, GREEDY)
        assert [waits_s() for _ in range(4)] == [1.0, 0.0, 1.0, 1.0]  # the third prompt has no room after one step
        engines.engine.abort("0")
        assert [waits_s() for _ in range(3)] == [1.0, 0.0, 1.0]
        assert engines.finish()["2"].finished

    def test_a_worker_whose_policy_waits_sleeps_until_then(self, folder):
        policy = DynamicPolicy(batch_size=2, timeout_s=50)
        engines = TwoEngines(folder, prefill={"policy": policy})
        engines.engine.add_request("0", prompt_of(0, 5), GREEDY)
        engines.worker.turn()
        assert engines.back.first_asked_s(lambda: engines.worker.turn(1.0)) == 1.0
        assert 1.0 < engines.back.first_asked_s(lambda: engines.worker.turn(100.0)) < 50.0
        engines.engine.add_request("1", prompt_of(1, 5), GREEDY)
        engines.finish()

    def test_a_decode_side_that_can_do_nothing_before_pages_come_sleeps(self, folder):
        """Its only sequence was preempted, and has no room as long as a prompt on its way has blocks reserved."""
        engines = TwoEngines(folder, decode={"num_kv_blocks": 7})
        engines.engine.add_request("0", prompt_of(0, 4), replace(GREEDY, max_tokens=20))
        engines.turn()
        engines.engine.add_request("1", prompt_of(1, 12), GREEDY)
        while not engines.decode.scheduler.num_waiting:
            assert engines.front.first_asked_s(engines.engine.step) == 0.0
        assert engines.front.first_asked_s(engines.engine.step) > 0.01
        assert all(output.finished for output in engines.finish().values())

    def test_more_requests_than_places(self, folder):
        prompts = prompts_of([5] * 7)
        engines = TwoEngines(folder, decode={"max_num_seqs": 2})
        seen = []
        engines.to_decode.before = lambda message: seen.append(engines.decode.scheduler.ledger.num_places_taken)
        assert completions(engines.generate(prompts, GREEDY)) == completions(expected(folder, prompts, GREEDY))
        assert max(seen) == 2

    def test_who_is_preempted_there_is_recomputed_there(self, folder):
        prompts, params = prompts_of([15, 14, 13, 12]), replace(GREEDY, max_tokens=24)
        engines = TwoEngines(folder, decode={"num_kv_blocks": 20})
        outputs = engines.generate(prompts, params)
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
        assert completions(outputs) == completions(expected(folder, prompts, params))
        assert sum(isinstance(said, Submit) for said in engines.to_prefill.said) == 4

    def test_the_validation_knows_both_sides(self, folder):
        engines = TwoEngines(folder, prefill={"num_kv_blocks": 4})
        with pytest.raises(InvalidRequestError, match=r"the prefill side \(rank 1\) refuses: .*needs? 5 KV blocks"):
            engines.engine.add_request("a", prompt_of(0, 18), GREEDY)
        with pytest.raises(InvalidRequestError, match="max_model_len=128"):
            engines.engine.add_request("a", prompt_of(0, 128), GREEDY)
        engines.check_idle()
        assert not engines.to_prefill.said

    def test_both_sides_must_agree(self, folder):
        with pytest.raises(ConfigError, match="same model, K/V format and block size"):
            TwoEngines(folder, prefill={"block_size": 8})


class TestTrouble:
    @pytest.mark.parametrize("num_turns", range(6))
    @pytest.mark.parametrize("decode_blocks", [6, 64])
    def test_abort_leaves_nothing_wherever_it_comes(self, folder, num_turns, decode_blocks):
        prompts = prompts_of([15, 14, 17])
        engines = TwoEngines(folder, decode={"num_kv_blocks": decode_blocks}, prefill={"max_num_batched_tokens": 8})
        for i, prompt in enumerate(prompts):
            engines.engine.add_request(str(i), prompt, GREEDY)
        for turn in range(num_turns):
            engines.turn() if turn % 2 else engines.worker.turn()
        output = engines.engine.abort("1")
        assert output.outputs[0].finish_reason == "abort"
        outputs = engines.finish()
        reference = expected(folder, prompts, GREEDY)
        assert completions([outputs["0"], outputs["2"]]) == completions([reference[0], reference[2]])

    def test_pages_on_their_way_to_freed_blocks_are_dropped(self, folder):
        engines = TwoEngines(folder)
        engines.engine.add_request("0", prompt_of(0, 15), GREEDY)
        block_ids = list(engines.engine._receiver._incoming["0"].block_ids)

        def abort(message):
            if isinstance(message, Pages):
                engines.engine.abort("0")

        engines.to_decode.before = abort
        engines.worker.turn()
        assert any(isinstance(said, int) for said in engines.to_decode.said)  # they were sent all the same
        assert engines.decode.kv_cache.storage[0][:, block_ids].abs().sum() == 0
        engines.finish()
        assert isinstance(engines.to_prefill.said[-1], Cancel)

    @pytest.mark.parametrize("stage", ["plan", "write", "attend"])
    def test_a_prompt_that_breaks_fails_alone(self, folder, stage):
        """The run is repeated in halves; the pages announced by the broken one are sent again."""
        suspect = Suspect("1")
        make_backend = lambda spec: FaultyBackend(TorchBackend(spec, 4), stage, suspect)  # noqa: E731
        engines = TwoEngines(folder, prefill={"attention_backend": make_backend})
        suspect.engine = engines.prefill.engine
        prompts = prompts_of([7, 9, 10])
        outputs = engines.generate(prompts, GREEDY)
        assert outputs[1].outputs[0].finish_reason == "error"
        assert "planted" in outputs[1].outputs[0].error
        assert engines.engine.recoveries.num_resent == 0  # nothing was missing
        reference = expected(folder, prompts, GREEDY)
        assert completions([outputs[0], outputs[2]]) == completions([reference[0], reference[2]])

    @pytest.mark.parametrize("num_turns", range(5))
    def test_a_lost_worker_loses_no_request(self, folder, num_turns):
        """Wherever it is lost: what has its pages goes on, the other prompts are computed here, and nothing stays."""
        prompts = prompts_of([15, 40, 9])
        engines = TwoEngines(folder, decode={"num_kv_blocks": 24}, prefill={"max_num_batched_tokens": 16})
        for i, prompt in enumerate(prompts):
            engines.engine.add_request(str(i), prompt, GREEDY)
        for _ in range(num_turns):
            engines.turn()
        num_waiting = len(engines.engine._rank_of)
        engines.front.put(LOSS)
        outputs = alone_until_the_end(engines)
        assert completions([outputs[str(i)] for i in range(3)]) == completions(expected(folder, prompts, GREEDY))
        assert engines.engine.recoveries.num_recomputed == num_waiting
        assert num_turns or num_waiting == 3
        assert engines.decode.engine.stats().cache.num_in_use == 0
        engines.decode.scheduler.cache.check_integrity()
        with pytest.raises(PeerLostError, match="rank 1"):
            engines.engine.add_request("4", prompts[0], GREEDY)
        with pytest.raises(PeerLostError, match="rank 1"):
            engines.engine.take_transfers()

    @pytest.mark.parametrize("num_turns", range(4))
    def test_a_worker_without_its_decode_side_frees_everything(self, folder, num_turns):
        engines = TwoEngines(folder, decode={"num_kv_blocks": 6}, prefill={"max_num_batched_tokens": 16})
        for i, prompt in enumerate(prompts_of([15, 14, 17])):
            engines.engine.add_request(str(i), prompt, GREEDY)
        for _ in range(num_turns):
            engines.turn()
        engines.back.put(PeerLostError((0,), "a sign of life", 8.0, "silence"))
        with pytest.raises(PeerLostError, match="rank 0 was lost"):
            engines.worker.serve()
        assert engines.prefill.engine.stats().cache.num_in_use == 0
        engines.prefill.scheduler.cache.check_integrity()

    @pytest.mark.parametrize("seed", range(8))
    def test_random_lives(self, folder, seed):
        play(folder, seed)


LOSS = PeerLostError((1,), "a sign of life", 8.0, "Connection closed by peer")


def alone_until_the_end(engines, max_steps=200):
    """The decode side's steps, without a worker; each request's last output."""
    outputs = dict(engines.outputs)
    for _ in range(max_steps):
        if not engines.engine.has_unfinished_requests():
            return outputs
        outputs |= {output.request_id: output for output in engines.engine.step()}
    raise AssertionError(f"not finished after {max_steps} steps")


def lose_first(num_layers):
    """A line that loses the first so many layers' pages."""
    lost = []

    def loses(pages, layer):
        lost.append((pages, layer))
        return len(lost) <= num_layers

    return loses


class TestTransfersThatFail:
    """Pages that do not come, or cannot be written, in the middle of a transfer: the tokens are those of one engine."""

    @pytest.mark.parametrize("name", PARAMS)
    @pytest.mark.parametrize(("num_lost", "num_recomputed"), [(1, 0), (10**6, 7)])
    def test_tokens_are_those_of_a_single_engine(self, folder, name, num_lost, num_recomputed):
        """A layer that is lost is sent again; a line that loses everything leaves all prompts to the decode side."""
        prompts, params = prompts_of(), PARAMS[name]
        engines = TwoEngines(folder, prefill={"max_num_batched_tokens": 64, "seed": 1})
        engines.to_decode.loses = lose_first(num_lost)
        assert completions(engines.generate(prompts, params)) == completions(expected(folder, prompts, params))
        recoveries = engines.engine.recoveries
        assert recoveries.num_recomputed == num_recomputed
        assert recoveries.num_resent >= max(1, num_recomputed)

    def test_only_what_is_missing_is_sent_again(self, folder):
        """23 tokens in chunks of 10: blocks 0-1, 2-4 and 5. The second transfer loses its second layer: from block 2
        on all is sent again, and both sides hold the same bits."""
        engines = TwoEngines(folder, prefill={"max_num_batched_tokens": 10, "max_num_seqs": 1})
        engines.to_decode.loses = lambda pages, layer: (
            layer == 1 and pages.ranges[0].first_block == 2 and is_first(pages)
        )
        seen = []

        def is_first(pages):
            seen.append(pages)
            return len(seen) == 1

        outputs = engines.generate([prompt_of(0, 23)], GREEDY)
        sent = [said.ranges for said in engines.to_decode.said if isinstance(said, Pages)]
        assert [(each.first_block, each.num_blocks) for (each,) in sent] == [(0, 2), (2, 3), (5, 1), (2, 4)]
        assert [said.first_block for said in engines.to_prefill.said if isinstance(said, Grant)] == [2]
        assert (engines.engine.recoveries.num_resent, engines.engine.recoveries.num_recomputed) == (1, 0)
        assert completions(outputs) == completions(expected(folder, [prompt_of(0, 23)], GREEDY))

    def test_a_known_prefix_is_not_missed(self, folder):
        engines = TwoEngines(folder)
        prompt = prompt_of(0, 18)
        engines.generate([prompt], GREEDY)
        engines.generate([prompt], GREEDY)
        assert engines.engine.recoveries.num_resent == 0

    def test_pages_that_cannot_be_written_are_missing(self, folder, monkeypatch):
        """torch has no memory for a copy, twice: the second layer's pages, and again when they are sent once more."""
        pages = sys.modules[two_engines.KVReceiver.__module__]  # or a mutant of it
        real, calls = pages.unpack_layer, []

        def unpack_layer(*args):
            calls.append(args[1])
            if len(calls) in (2, 4):
                raise RuntimeError("out of memory")
            real(*args)

        monkeypatch.setattr(pages, "unpack_layer", unpack_layer)
        engines = TwoEngines(folder)
        outputs = engines.generate([prompt_of(0, 9)], GREEDY)
        assert (engines.engine.recoveries.num_resent, engines.engine.recoveries.num_recomputed) == (1, 1)
        assert calls == [0, 1, 0, 1]
        assert completions(outputs) == completions(expected(folder, [prompt_of(0, 9)], GREEDY))
        assert isinstance(engines.to_prefill.said[-1], Cancel)

    def test_logprobs_of_the_prompt_are_those_of_the_engine_that_computed_it(self, folder):
        params = replace(GREEDY, prompt_logprobs=2, logprobs=2)
        engines = TwoEngines(folder)
        engines.to_decode.loses = lambda pages, layer: True
        (ours,), (theirs,) = engines.generate([prompt_of(0, 9)], params), expected(folder, [prompt_of(0, 9)], params)
        assert len(ours.prompt_logprobs) == 9
        for here, there in zip(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:], strict=True):
            assert here.logprob == pytest.approx(there.logprob, abs=1e-4)

    def test_a_small_pool_computes_them_one_after_the_other(self, folder):
        prompts = prompts_of([15, 14, 13, 16])
        engines = TwoEngines(folder, decode={"num_kv_blocks": 7}, prefill={"num_kv_blocks": 12})
        engines.to_decode.loses = lambda pages, layer: True
        assert completions(engines.generate(prompts, GREEDY)) == completions(expected(folder, prompts, GREEDY))
        assert engines.engine.recoveries.num_recomputed == 4

    @pytest.mark.parametrize("num_turns", [1, 2, 3])
    def test_abort_in_the_middle_of_a_recovery(self, folder, num_turns):
        prompts = prompts_of([15, 14])
        engines = TwoEngines(folder)
        engines.to_decode.loses = lambda pages, layer: True
        for i, prompt in enumerate(prompts):
            engines.engine.add_request(str(i), prompt, GREEDY)
        for _ in range(num_turns):
            engines.turn()
        assert engines.engine.abort("0").outputs[0].finish_reason == "abort"
        assert engines.finish()["1"].outputs == expected(folder, prompts, GREEDY)[1].outputs

    @pytest.mark.parametrize("seed", range(4))
    def test_random_lives(self, folder, seed):
        """A line that loses one layer in five."""
        rng = random.Random(seed)
        recoveries = play(folder, seed, loses=lambda pages, layer: rng.random() < 0.2)
        assert recoveries.num_resent > 0


def play(folder, seed, num_requests=14, loses=None):
    """Random pools, prompts, arrivals, aborts: the tokens of a single engine, and nothing left."""
    rng = random.Random(seed)
    prompts = prompts_of([rng.randint(1, 30) for _ in range(num_requests)])
    prompts += [{"prompt_token_ids": [*prompts[0]["prompt_token_ids"][:20], 9, 8, 7]}] * 2
    params = replace(GREEDY, max_tokens=rng.choice((1, 6, 12)))
    engines = TwoEngines(
        folder,
        decode={"num_kv_blocks": rng.randint(11, 24), "max_num_seqs": rng.randint(2, 8)},
        prefill={"num_kv_blocks": rng.randint(8, 24), "max_num_batched_tokens": rng.randint(8, 40), "max_num_seqs": 8},
    )
    engines.to_decode.loses = loses or engines.to_decode.loses
    aborted = set()
    for i, prompt in enumerate(prompts):
        engines.engine.add_request(str(i), prompt, params)
        for _ in range(rng.randint(0, 4)):
            rng.choice((engines.turn, engines.worker.turn))()
        engines.check_integrity()
        if rng.random() < 0.2:
            victim = str(rng.randint(0, i))
            if engines.engine.abort(victim) is not None:
                aborted.add(victim)
    outputs = engines.finish()
    reference = expected(folder, prompts, params)
    for i, each in enumerate(reference):
        if str(i) not in aborted:
            assert outputs[str(i)].outputs == each.outputs
    said = engines.to_prefill.said
    assert sum(isinstance(each, Received | Cancel) for each in said) >= sum(isinstance(each, Submit) for each in said)
    return engines.engine.recoveries


def test_what_a_transfer_hides():
    """A forward pass from 0 to 10 s that sends three layers; the last is still under way when it ends."""
    now = iter([0.0, 1.5, 4.5, 10.0])
    clock = TransferClock(3, 300, clock=lambda: next(now))
    clock.packed(1.0)
    clock.sent(1.5, 3.5)
    clock.packed(4.0)
    clock.sent(4.5, 6.5)
    clock.computed()
    clock.sent(9.0, 12.0)
    record = clock.record()
    assert (record.compute_s, record.pack_s, record.send_s, record.late_s) == (10.0, 1.0, 7.0, 2.0)
    assert record.hidden_share == pytest.approx(5 / 8)
