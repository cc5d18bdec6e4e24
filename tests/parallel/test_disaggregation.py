"""Prefill and decode apart, in one process: the tokens of a single engine, the same pages, and never a page too many."""

import itertools
import random
from dataclasses import replace

import pytest
import torch

from tests.cache.integrity import check_integrity
from tests.engine.engines import prompt_of
from tests.engine.faults import FaultyBackend, Suspect
from tests.parallel.two_engines import OPTIONS, TwoEngines
from twophase import LLM, SamplingParams
from twophase.attention.torch_backend import TorchBackend
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase.scheduling.policy import Policy
from twophase_features.parallel._protocol import Cancel, Done, Pages, Submit, Transfer
from twophase_features.parallel.disaggregation import check_same
from twophase_features.parallel.peers import PeerLostError
from twophase_features.policies.request_level import DynamicPolicy

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
LENGTHS = (1, 3, 4, 5, 16, 17, 40)  # below, at and above a block; over several chunks of 16
NUM_PAGES = (0, 0, 0, 1, 3, 4, 9)  # that travel


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


def test_seeds_are_drawn_in_the_order_of_requests(folder):
    """Not in that in which their pages come: the second and the fourth are computed here at once."""
    TwoEngines(folder).check(prompts_of([40, 3, 17, 2]), PARAMS["unseeded"])


class TestPages:
    @pytest.mark.parametrize("kv_cache_dtype", ["float32", "int8"])
    def test_both_sides_hold_the_same_bits(self, folder, kv_cache_dtype):
        """The worker's blocks and the decode side's: scales included."""
        engines = TwoEngines(folder, kv_cache_dtype=kv_cache_dtype, prefill={"max_num_batched_tokens": 16})
        engines.decode.generate([prompt_of(99, 11)], GREEDY, use_tqdm=False)  # other block ids than on the other side
        checked = []

        def compare(message):
            if isinstance(message, Done):
                submit = engines.engine._remote[message.request_id].submit
                there = known_blocks(engines.prefill, submit.prompt_token_ids)
                assert engines.prefill.kv_cache.storage[0][:, there].float().abs().sum() > 0
                checked.append((len(there), submit.prompt_token_ids, there))

        engines.to_decode.before = compare
        engines.generate(prompts_of(), GREEDY)
        assert [count for count, _, _ in checked] == [count for count in NUM_PAGES if count]
        for _, token_ids, there in checked:
            here = known_blocks(engines.decode, token_ids)
            assert here != there
            for left, right in zip(engines.decode.kv_cache.storage, engines.prefill.kv_cache.storage, strict=True):
                assert torch.equal(left[:, here], right[:, there])

    def test_a_layer_travels_before_the_next_is_computed(self, folder):
        events = []
        engines = TwoEngines(folder)
        forward = engines.prefill.model.backend.write
        engines.prefill.model.backend.write = lambda *args: (events.append("computed"), forward(*args))[1]
        engines.to_decode.before = lambda message: events.extend(["sent"] * isinstance(message, Pages))
        engines.generate(prompts_of([17]), GREEDY)
        assert events == ["computed", "sent"] * 2

    def test_known_prefixes_do_not_travel(self, folder):
        engines = TwoEngines(folder)
        prompt = prompt_of(0, 18)["prompt_token_ids"]
        first = engines.generate([{"prompt_token_ids": prompt}], GREEDY)
        assert engines.to_decode.blocks_sent() == 4
        longer = {"prompt_token_ids": [*prompt, 5, 6, 7, 8]}
        outputs = engines.generate([longer], GREEDY)
        # Four full blocks are known there since, and on this side as well.
        assert engines.to_decode.blocks_sent() == 4 + 1
        assert [done.num_cached_tokens for done in engines.engine.take_transfers()[1]] == [0, 16]
        assert outputs[0].metrics.num_cached_tokens == 20
        assert completions([*first, *outputs]) == completions(
            expected(folder, [{"prompt_token_ids": prompt}, longer], GREEDY)
        )

    def test_a_prompt_that_comes_twice_at_once(self, folder):
        engines = TwoEngines(folder)
        engines.check([prompt_of(0, 18)] * 3, GREEDY)

    def test_pages_leave_the_tier_when_they_are_loaded(self, folder):
        """And not when the request ends."""
        engines = TwoEngines(folder)
        engines.engine.add_request("0", prompt_of(0, 18), GREEDY)
        assert len(engines.tier._expected) == 4
        engines.turn()
        assert engines.decode.scheduler.num_running == 1
        assert not engines.tier._expected
        engines.finish()

    @pytest.mark.parametrize("place", ["prompt", "argument"])
    @pytest.mark.parametrize("side", ["decode", "prefill"])
    def test_tenants_share_no_pages_on_either_side(self, folder, place, side):
        """A salt in the prompt, or beside it, holds on both sides: a tenant hits its own prompt, nobody else's."""
        engines = TwoEngines(folder, decode={"enable_prefix_caching": side == "decode"})
        ids = prompt_of(0, 18)["prompt_token_ids"]

        def num_cached(name, salt):
            prompt = {"prompt_token_ids": ids} | ({"cache_salt": salt} if place == "prompt" else {})
            engines.engine.add_request(name, prompt, GREEDY, cache_salt=salt if place == "argument" else "")
            num_sent = engines.to_decode.blocks_sent()
            engines.finish()
            if side == "decode":
                return 16 - 4 * (engines.to_decode.blocks_sent() - num_sent)
            return engines.engine.take_transfers()[1][0].num_cached_tokens

        salts, again = ("alice", "bob", "", "alice", "bob", ""), 16 if side == "decode" else 12
        assert [num_cached(str(i), salt) for i, salt in enumerate(salts)] == [0, 0, 0, again, again, again]


def known_blocks(llm, token_ids):
    """The blocks that an engine's prefix cache has of these tokens."""
    cache = llm.scheduler.cache
    table = cache.open([*token_ids, 0], count_in_stats=False)
    block_ids = list(table.block_ids)
    cache.close(table)
    return block_ids


def submitted(engines):
    return [said for said in engines.to_prefill.said if isinstance(said, Submit)]


class Unranked(Policy):
    def rank(self, sequence):
        raise ZeroDivisionError("planted")

    def plan(self, step):
        raise AssertionError("nothing to plan")


class TestRoom:
    def test_a_full_tier_holds_up_the_prefill_side(self, folder):
        """Room for two prompts, and for the last one: the others are not sent yet, wait in their order, and complete."""
        prompts, num_here = prompts_of([15, 14, 13, 16, 9]), []
        engines = TwoEngines(folder, num_tier_blocks=8)
        engines.to_prefill.before = lambda message: num_here.append(len(engines.tier._expected))
        for i, prompt in enumerate(prompts):
            engines.engine.add_request(str(i), prompt, GREEDY)
        assert len(submitted(engines)) == 2
        assert engines.engine.stats().num_waiting == 5
        outputs = engines.finish()
        assert completions([outputs[str(i)] for i in range(5)]) == completions(expected(folder, prompts, GREEDY))
        assert [each.request_id for each in submitted(engines)] == ["0", "1", "2", "3", "4"]
        assert 6 <= max(num_here) <= 8

    def test_a_prompt_that_the_tier_could_never_hold_is_computed_here(self, folder):
        engines = TwoEngines(folder, num_tier_blocks=2)
        engines.check(prompts_of(), GREEDY)
        assert [len(each.keys) for each in submitted(engines)] == [1]

    def test_a_worker_with_nothing_to_compute_sleeps(self, folder):
        """A message wakes it, no clock does."""
        engines = TwoEngines(folder, prefill={"max_num_batched_tokens": 16})

        def waits_s():
            return engines.back.first_asked_s(lambda: engines.worker.turn(1.0))

        assert waits_s() == 1.0
        engines.engine.add_request("0", prompt_of(0, 40), GREEDY)
        assert [waits_s() for _ in range(4)] == [1.0, 0.0, 0.0, 1.0]
        engines.finish()

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
        engines = TwoEngines(folder)
        assert engines.front.first_asked_s(engines.engine.step) == 0.0
        engines.engine.add_request("0", prompt_of(0, 12), GREEDY)
        assert engines.front.first_asked_s(engines.engine.step) > 0.01
        engines.engine.add_request("1", prompt_of(1, 2), GREEDY)
        assert engines.front.first_asked_s(engines.engine.step) == 0.0
        assert all(output.finished for output in engines.finish().values())

    @pytest.mark.parametrize("preemption_mode", ["recompute", "swap"])
    def test_who_is_preempted_there_goes_on_there(self, folder, preemption_mode):
        """What it had is computed again, or comes from the tier behind: no page is sent twice."""
        prompts, params = prompts_of([15, 14, 13, 12]), replace(GREEDY, max_tokens=24)
        engines = TwoEngines(folder, decode={"num_kv_blocks": 20, "preemption_mode": preemption_mode})
        outputs = engines.check(prompts, params)
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
        assert len(submitted(engines)) == 4
        num_sent = sum(len(each.keys) for each in submitted(engines))
        num_loaded = sum(step.blocks_loaded for step in engines.engine.trace)
        assert (num_loaded > num_sent) == (preemption_mode == "swap")

    def test_what_the_policy_cannot_rank_is_refused_at_once(self, folder):
        engines = TwoEngines(folder, decode={"policy": Unranked()})
        with pytest.raises(ZeroDivisionError, match="planted"):
            engines.engine.add_request("a", prompt_of(0, 12), GREEDY)
        assert not engines.engine.has_unfinished_requests()
        assert not engines.to_prefill.said

    @pytest.mark.parametrize("lengths", [(12, 12), (12, 2), (2, 12)])
    def test_an_id_is_in_use_wherever_its_prompt_is_computed(self, folder, lengths):
        engines = TwoEngines(folder)
        engines.engine.add_request("a", prompt_of(0, lengths[0]), GREEDY)
        with pytest.raises(InvalidRequestError, match="'a' is in use"):
            engines.engine.add_request("a", prompt_of(1, lengths[1]), GREEDY)
        assert engines.finish()["a"].outputs == expected(folder, [prompt_of(0, lengths[0])], GREEDY)[0].outputs

    def test_both_sides_must_agree(self, folder):
        engines = TwoEngines(folder, prefill={"block_size": 8})
        ranks = [(each.model_config, each.kv_cache.spec) for each in (engines.decode, engines.prefill)]
        check_same([ranks[0]] * 2)
        with pytest.raises(ConfigError, match=r"same model, K/V format and block size.* rank 1 has"):
            check_same(ranks)


class TestTrouble:
    def test_pages_of_an_aborted_request_are_dropped(self, folder):
        engines = TwoEngines(folder)
        engines.engine.add_request("0", prompt_of(0, 15), GREEDY)

        def abort(message):
            if isinstance(message, Pages):
                engines.engine.abort("0")

        engines.to_decode.before = abort
        engines.worker.turn()
        assert engines.to_decode.blocks_sent() == 3  # they were sent all the same
        engines.finish()
        assert isinstance(engines.to_prefill.said[-1], Cancel)

    def test_late_pages_are_not_taken_for_those_of_the_next_request(self, folder):
        """It has the same id, and another prompt."""
        engines = TwoEngines(folder)
        engines.engine.add_request("0", prompt_of(0, 15), GREEDY)
        engines.to_decode.loses = lambda pages: True
        engines.worker.turn()
        late = [said for said in engines.to_decode.said if isinstance(said, Pages)]
        assert len(late) == 2
        engines.engine.abort("0")
        engines.engine.add_request("0", prompt_of(1, 15), GREEDY)
        for pages in late:
            engines.tier.receive(pages)
        assert not any(block.pages for block in engines.tier._expected.values())
        engines.to_decode.loses = lambda pages: False
        assert engines.finish()["0"].outputs == expected(folder, [prompt_of(1, 15)], GREEDY)[0].outputs

    def test_a_prompt_that_breaks_the_worker_is_computed_here(self, folder):
        """The run is repeated in halves; the pages announced by the broken one are sent again."""
        suspect = Suspect("1")
        make_backend = lambda spec: FaultyBackend(TorchBackend(spec, 4), "write", suspect)  # noqa: E731
        engines = TwoEngines(folder, prefill={"attention_backend": make_backend})
        suspect.engine = engines.prefill.engine
        prompts = prompts_of([7, 9, 10])
        outputs = engines.generate(prompts, GREEDY)
        assert completions(outputs) == completions(expected(folder, prompts, GREEDY))
        assert engines.engine.num_recomputed == 1
        assert [output.metrics.num_cached_tokens for output in outputs] == [4, 0, 8]  # of the others nothing is missing
        (failed,) = [said for said in engines.to_decode.said if isinstance(said, Done) and said.error is not None]
        assert failed.request_id == "1"
        assert "planted" in failed.error

    @pytest.mark.parametrize("num_turns", [0, 1, 3])
    def test_a_lost_worker_loses_no_request(self, folder, num_turns):
        """Wherever it is lost: what has its pages goes on, the other prompts are computed here, and nothing stays."""
        prompts = prompts_of([15, 40, 9])
        engines = TwoEngines(folder, decode={"num_kv_blocks": 24}, prefill={"max_num_batched_tokens": 16})
        for i, prompt in enumerate(prompts):
            engines.engine.add_request(str(i), prompt, GREEDY)
        for _ in range(num_turns):
            engines.turn()
        num_waiting = len(engines.engine._remote)
        engines.front.put(LOSS)
        outputs = alone_until_the_end(engines)
        assert completions([outputs[str(i)] for i in range(3)]) == completions(expected(folder, prompts, GREEDY))
        assert engines.engine.num_recomputed == num_waiting
        assert num_turns or num_waiting == 3
        assert engines.decode.engine.stats().cache.num_in_use == 0
        check_integrity(engines.decode.scheduler.cache)
        with pytest.raises(PeerLostError, match="rank 1"):
            engines.engine.add_request("4", prompts[0], GREEDY)

    @pytest.mark.parametrize("num_turns", [1, 3])
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
        check_integrity(engines.prefill.scheduler.cache)

    @pytest.mark.parametrize(("seed", "share_lost"), [(0, 0.0), (1, 0.0), (2, 0.0), (1, 0.2), (2, 0.2)])
    def test_random_lives(self, folder, seed, share_lost):
        """Also on a line that loses one layer in five."""
        rng = random.Random(seed)
        play(folder, seed, loses=lambda pages: rng.random() < share_lost)


LOSS = PeerLostError((1,), "a sign of life", 8.0, "Connection closed by peer")


def alone_until_the_end(engines, max_steps=200):
    """The decode side's steps, without a worker; each request's last output."""
    outputs = dict(engines.outputs)
    for _ in range(max_steps):
        if not engines.engine.has_unfinished_requests():
            return outputs
        outputs |= {output.request_id: output for output in engines.engine.step()}
    raise AssertionError(f"not finished after {max_steps} steps")


class TestTransfersThatFail:
    """Pages that do not come: the tokens are those of one engine."""

    @pytest.mark.parametrize(("name", "lost"), [*((name, {3}) for name in PARAMS), ("greedy", range(100))])
    def test_tokens_are_those_of_a_single_engine(self, folder, name, lost):
        """One layer of some blocks is lost, or every page."""
        prompts, params, numbers = prompts_of(), PARAMS[name], itertools.count()
        engines = TwoEngines(folder, prefill={"max_num_batched_tokens": 64, "seed": 1})
        engines.to_decode.loses = lambda pages: next(numbers) in lost
        assert completions(engines.generate(prompts, params)) == completions(expected(folder, prompts, params))

    def test_every_block_is_sent_once(self, folder):
        """23 tokens in chunks of 10: blocks 0-1, then 2-4, in two layers."""
        engines = TwoEngines(folder, prefill={"max_num_batched_tokens": 10, "max_num_seqs": 1})
        engines.generate([prompt_of(0, 23)], GREEDY)
        (submit,), (transfers, _) = submitted(engines), engines.engine.take_transfers()
        assert [said.keys for said in engines.to_decode.pages_said()] == [submit.keys[:2], submit.keys[2:]]
        assert [record.num_blocks for record in transfers] == [2 * 2, 3 * 2]

    @pytest.mark.parametrize(("hole", "num_cached"), [(0, 0), (2, 8)])
    def test_pages_before_a_hole_are_loaded(self, folder, hole, num_cached):
        """Blocks 0-1, or 2-4, never come whole: nothing, or blocks 0 and 1, are loaded, and the rest is computed."""
        engines = TwoEngines(folder, prefill={"max_num_batched_tokens": 10, "max_num_seqs": 1})
        engines.to_decode.loses = lambda pages: pages.layer == 1 and submitted(engines)[0].keys[hole] in pages.keys
        (output,) = engines.generate([prompt_of(0, 23)], GREEDY)
        assert output.metrics.num_cached_tokens == num_cached

    def test_a_prompt_whose_logprobs_are_asked_for_is_computed_here(self, folder):
        params = replace(GREEDY, prompt_logprobs=2, logprobs=2)
        engines = TwoEngines(folder)
        (ours,), (theirs,) = engines.generate([prompt_of(0, 9)], params), expected(folder, [prompt_of(0, 9)], params)
        assert not submitted(engines)
        assert len(ours.prompt_logprobs) == 9
        for here, there in zip(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:], strict=True):
            assert here.logprob == pytest.approx(there.logprob, abs=1e-4)


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
    num_over = sum(isinstance(each, Cancel | Done) for each in engines.to_prefill.said + engines.to_decode.said)
    assert num_over >= len(submitted(engines)) > 0
    return engines.engine


def test_what_a_transfer_hides():
    """A forward pass from 0 to 10 s that sends three layers; the last is still under way when it ends."""
    record = Transfer(0.0, 10.0, 4, 200, 1.0, [(1.5, 3.5), (4.5, 6.5), (9.0, 12.0)])
    assert (record.send_s, record.late_s) == (7.0, 2.0)
