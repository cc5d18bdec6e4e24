"""Who gets what of the engine: prompts by turns, and tenants by what they were served."""

import random
from collections import Counter

import pytest

from tests.scheduling.harness import Harness, make_request
from twophase.scheduling.sequence import Sequence
from twophase_features.policies.fair_shares import OUTPUT_WEIGHT, FairPolicy
from twophase_features.policies.round_robin import RotatingPolicy


class TestRotating:
    def test_a_turn_that_was_dropped_is_no_turn(self):
        harness = Harness(policy=RotatingPolicy(4), budget=4, prefix_caching=False)
        harness.add(make_request("a", 8, 1), make_request("b", 8, 1))
        harness.step()
        for _ in range(3):
            assert [harness.name(chunk.seq_id) for chunk in harness.schedule().chunks] == ["b"]
        harness.run().check_outputs()
        assert [who for _, who, _ in harness.log] == ["a", "b", "a", "b"]

    def test_what_moves_a_sequence_behind_the_others(self):
        """It comes, or a chunk of its prompt is computed; not a preemption, and no decode."""
        policy = RotatingPolicy(4)
        a, b = (Sequence.of_request(i, make_request("ab"[i], 9), max_model_len=64) for i in range(2))
        for sequence in (a, b):
            policy.note_waiting(sequence)
        assert policy.turns[a.seq_id] < policy.turns[b.seq_id]
        a.num_preemptions = 1
        policy.note_waiting(a)
        policy.note_computed(a, 0, 1)
        assert policy.turns[a.seq_id] < policy.turns[b.seq_id]
        policy.note_computed(a, 4, 0)
        assert policy.turns[a.seq_id] > policy.turns[b.seq_id]

    def test_turns_are_forgotten_with_their_sequences(self):
        harness = Harness(policy=RotatingPolicy(4), num_blocks=6, prefix_caching=False)
        harness.add(*(make_request(name, 6, 9) for name in "abc"))
        harness.run().check_outputs()
        assert harness.preempted
        assert harness.scheduler.policy.turns == {}


class TestFair:
    def served(self, harness: Harness, *tenants: str) -> list[int]:
        return [harness.scheduler.policy.counters[tenant] for tenant in tenants]

    def waiting(self, harness: Harness) -> set[str]:
        return {sequence.request.tenant for sequence in harness.scheduler.planner.waiting}

    @pytest.mark.parametrize("seed", range(6))
    def test_as_long_as_two_wait_they_are_served_alike(self, seed):
        """One has four times as many requests, and asks first. The bound is the paper's: twice the larger of a prompt
        and of what is generated for all that runs."""
        rng = random.Random(seed)
        places, longest_prompt, longest_output = 4, 12, 10
        harness = Harness(policy=FairPolicy(), max_num_seqs=places, budget=32, prefix_caching=False)
        tenants = ["busy"] * 80 + ["calm"] * 20
        for number, tenant in enumerate(tenants):
            prompt, output = rng.randint(1, longest_prompt), rng.randint(1, longest_output)
            harness.add(make_request(f"r{number}", prompt, output, tenant=tenant))
        bound = 2 * max(longest_prompt, OUTPUT_WEIGHT * places * (longest_prompt + longest_output))
        num_both = 0
        while self.waiting(harness) == {"busy", "calm"}:
            harness.step()
            busy, calm = self.served(harness, "busy", "calm")
            assert abs(busy - calm) <= bound
            num_both += 1
        assert num_both > 20
        assert min(self.served(harness, "busy", "calm")) > 2 * bound / 3, "it went on for long enough to tell"
        harness.run().check_outputs()

    def test_idleness_is_not_saved_up(self):
        """b comes when a has had much. It is lifted to a's counter: they take turns, and a is not shut out."""
        harness = Harness(policy=FairPolicy(), max_num_seqs=1, prefix_caching=False)
        harness.add(*(make_request(f"a{i}", 4, 4, tenant="a") for i in range(20)))
        while len(harness.ends) < 8:
            harness.step()
        before = self.served(harness, "a")[0]
        harness.add(*(make_request(f"b{i}", 4, 4, tenant="b") for i in range(6)))
        assert self.served(harness, "b") == [before] == self.served(harness, "a")
        while len(harness.ends) < 16:
            harness.step()
        ended = [name[0] for name, _ in harness.ends][8:]
        assert Counter(ended) == {"a": 4, "b": 4}
        harness.run().check_outputs()

    def test_after_an_empty_queue_the_last_who_waited_is_the_measure(self):
        harness = Harness(policy=FairPolicy(), prefix_caching=False)
        harness.add(make_request("a", 4, 4, tenant="a"))
        harness.run()
        assert self.served(harness, "a", "b") == [4 + 4 * OUTPUT_WEIGHT, 0]
        harness.add(make_request("b", 4, 1, tenant="b"))
        assert self.served(harness, "a", "b") == [12, 12]
        harness.run()
        harness.add(make_request("a2", 4, 1, tenant="a"))  # a counter never falls, and is lifted to b's
        assert self.served(harness, "a", "b") == [18, 18]

    def test_a_counter_never_falls(self):
        harness = Harness(policy=FairPolicy(), max_num_seqs=1, prefix_caching=False)
        harness.add(make_request("a0", 4, 8, tenant="a"))
        harness.run()
        before = self.served(harness, "a")
        harness.add(make_request("b0", 4, 8, tenant="b"))
        harness.scheduler.policy.counters["b"] = 3  # a tenant who waits and was served less
        harness.add(make_request("a1", 4, 8, tenant="a"))
        assert self.served(harness, "a") == before

    def test_only_what_is_computed_is_charged_and_only_once(self):
        harness = Harness(policy=FairPolicy(), num_blocks=64)
        harness.add(make_request("a", range(50, 59), 2, tenant="a"))
        harness.run()
        assert self.served(harness, "a") == [9 + 2 * OUTPUT_WEIGHT]
        harness.add(make_request("a2", range(50, 59), 2, n=2, tenant="a"))
        harness.run()
        assert self.served(harness, "a") == [9 + 2 * OUTPUT_WEIGHT + 1 + 4 * OUTPUT_WEIGHT], "8 were found"
        crowded = Harness(policy=FairPolicy(), num_blocks=4, prefix_caching=False)
        crowded.add(make_request("a", 4, 12, tenant="a"), make_request("b", 3, 12, tenant="b"))
        crowded.run().check_outputs()
        assert crowded.preempted
        assert self.served(crowded, "a", "b") == [4 + 12 * OUTPUT_WEIGHT, 3 + 12 * OUTPUT_WEIGHT]

    def test_the_queue_of_tenants_follows_the_queue(self):
        """Whoever ends while it waits, waits no more."""
        harness = Harness(policy=FairPolicy(), max_num_seqs=1)
        waiting = harness.scheduler.policy.waiting
        harness.add(*(make_request(name, 3, 9, tenant=name) for name in "abc"))
        harness.step()
        assert set(waiting) == {"b", "c"}
        harness.take(harness.scheduler.abort("b"))
        assert set(waiting) == {"c"}
        harness.run()
        assert waiting == {}
