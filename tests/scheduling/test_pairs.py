"""Where two features meet: what each promises alone holds for both together."""

import pytest

from tests.scheduling.harness import Harness, make_request, next_token
from tests.scheduling.test_policies import Learners
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.policies.whole_prompts import PrefillFirstPolicy
from twophase_features.windows.sliding_window import SlidingWindow


def first_step_of(harness: Harness, name: str) -> int:
    return next(step for step, who, _ in harness.log if who == name)


class TestARefusalHoldsNoLongerThanItsReason:
    def test_a_prompt_that_found_no_budget_beside_decodes_runs_when_they_stand(self):
        """Step 3 must decode, for a stood still in step 2, and b does not fit beside; step 4 is b's."""
        policy = PrefillFirstPolicy(max_stalled_steps=1)
        harness = Harness(policy=policy, budget=32, chunked=False)
        harness.add(make_request("a", 3, 24))
        harness.step()
        harness.step()
        harness.add(make_request("c", 3, 24))
        harness.step()
        harness.add(make_request("b", 31, 2))
        harness.run().check_outputs()
        assert [entry for entry in harness.log if entry[0] in (2, 3, 4)] == [
            (2, "c", 3),
            (3, "a", 1), (3, "c", 1),
            (4, "b", 31),
        ]  # fmt: skip

    def test_one_that_does_not_fit_whole_may_be_tried_in_chunks(self):
        def whole_if_possible(step):
            for sequence in step.running:
                (step.decode if sequence.is_decoding else step.prefill)(sequence)
            for sequence in step.waiting:
                if not (step.admit(sequence, whole=True) or step.admit(sequence)):
                    break

        harness = Harness(policy=Learners(whole_if_possible), budget=8)
        harness.add(make_request("a", 3, 9))
        harness.step()
        harness.add(make_request("b", 8, 2))
        harness.step()
        assert harness.log[1:] == [(1, "a", 1), (1, "b", 7)]
        harness.run().check_outputs()

    def test_a_block_that_left_a_window_lets_the_next_one_in(self):
        """a holds three blocks at times and two at others; beside two b fits, in a step that only decodes."""
        harness = Harness(window=SlidingWindow(8), num_blocks=6, max_model_len=64, prefix_caching=False)
        harness.add(make_request("a", 3, 50))
        while harness.cache.num_free_blocks != 3:
            harness.step()
        harness.add(make_request("b", 9, 2))
        harness.step()
        assert not any(who == "b" for _, who, _ in harness.log), "b was to be refused at first"
        harness.run().check_outputs()
        assert first_step_of(harness, "b") < 20

    def test_a_block_that_a_decode_published_lets_in_whoever_hits_it(self):
        """b's prompt is what a writes: once a has written it, b needs one block of its own."""
        text = list(range(100, 104))
        while len(text) < 13:
            text.append(next_token(text, 0))
        harness = Harness(num_blocks=6)
        harness.add(make_request("a", text[:4], 40 - 20))
        harness.step()
        harness.add(make_request("b", text, 1))
        harness.run().check_outputs()
        last_of_a = max(step for step, who, _ in harness.log if who == "a")
        assert first_step_of(harness, "b") < last_of_a


class TestDraftsTakeOnlyWhatIsLeft:
    @pytest.mark.parametrize("policy", [ChunkedPrefillPolicy(max_tokens=8), DeadlinePolicy(max_tokens=8)], ids=str)
    def test_of_the_policys_tokens(self, policy):
        """With drafts too a step is never longer than the policy says."""
        harness = Harness(policy=policy, budget=64, max_drafts=9)
        harness.add(*(make_request(name, 5, 20, ignore_eos=True) for name in "abc"))
        harness.run().check_outputs()
        steps = {step for step, _, _ in harness.log}
        assert max(sum(tokens for at, _, tokens in harness.log if at == step) for step in steps) == 8
        assert harness.num_accepted > 0

    @pytest.mark.parametrize("order", ["prefills first", "decodes first"])
    def test_of_the_blocks_that_no_prefill_reserved(self, order):
        """b computes a long prompt through a window, block after block; a's accepted drafts leave it what it needs."""

        def plan(step):
            prefills = [sequence for sequence in step.running if not sequence.is_decoding]
            decodes = [sequence for sequence in step.running if sequence.is_decoding]
            for sequence in prefills + decodes if order == "prefills first" else decodes + prefills:
                if sequence.is_decoding:
                    step.decode(sequence)
                else:
                    step.prefill(sequence, 2)
            for sequence in step.waiting:
                step.admit(sequence, 2)

        options = {"window": SlidingWindow(8), "num_blocks": 5, "reserve_growth": False, "prefix_caching": False}
        harness = Harness(policy=Learners(plan), budget=12, max_drafts=3, **options)
        harness.add(make_request("a", 3, 30))
        harness.step()
        harness.add(make_request("b", 20, 3))
        harness.run().check_outputs()
        assert harness.num_accepted > 0
