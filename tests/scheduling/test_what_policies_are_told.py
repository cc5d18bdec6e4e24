"""What a scheduler tells its policy: sequences that wait, tokens that were computed, and ends. And to whom it tells it."""

from collections import Counter, defaultdict
from contextlib import suppress

import pytest

from tests.scheduling.harness import Harness, make_request, next_token
from tests.scheduling.test_failures import crowded
from twophase.scheduling.policy import Policy, by_priority, decodes_first
from twophase_features.policies.fair_shares import FairPolicy
from twophase_features.policies.round_robin import RotatingPolicy


class Told(Policy):
    """The default policy; it writes down what it is told, and fails at the note of that number."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.notes: list[tuple] = []
        self.fails_at = fails_at

    def rank(self, sequence):
        return by_priority(sequence)

    def plan(self, step):
        decodes_first(step)

    def note_waiting(self, sequence):
        self.note("waiting", sequence)

    def note_computed(self, sequence, num_prefill_tokens, num_output_tokens):
        self.note("computed", sequence, num_prefill_tokens, num_output_tokens)

    def note_ended(self, sequence):
        self.note("ended", sequence)

    def note(self, kind, sequence, *numbers):
        name = f"{sequence.request.request_id}/{sequence.index}"
        self.notes.append((kind, name, *numbers))
        if len(self.notes) - 1 == self.fails_at:
            raise ZeroDivisionError(f"note {self.fails_at}")


def test_a_prompt_in_chunks_and_its_completions():
    policy = Told()
    harness = Harness(policy=policy, budget=4)
    harness.add(make_request("a", 5, 2, n=2))
    harness.run()
    assert policy.notes == [
        ("waiting", "a/0"),
        ("computed", "a/0", 4, 0),
        ("computed", "a/0", 1, 2),
        ("computed", "a/0", 0, 1),
        ("computed", "a/1", 0, 1),
        ("ended", "a/0"),
        ("ended", "a/1"),
    ]


def test_a_preempted_sequence_waits_again_and_its_tokens_are_prefilled_again():
    """Four blocks of 4 tokens for two sequences that come to have 16: b, the later one, gives up its blocks."""
    policy = Told()
    harness = Harness(policy=policy, num_blocks=4, prefix_caching=False)
    harness.add(make_request("a", 4, 12), make_request("b", 3, 12))
    harness.run().check_outputs()
    of_b = [note for note in policy.notes if note[1] == "b/0"]
    again = of_b.index(("waiting", "b/0"), 1)
    num_output = sum(note[3] for note in of_b[:again] if note[0] == "computed")
    assert num_output > 1
    assert of_b[again + 1] == ("computed", "b/0", 3 + num_output, 1)
    assert of_b[-1] == ("ended", "b/0")


@pytest.mark.parametrize("kind", ["aborted", "failed"])
def test_a_sequence_that_is_ended_while_it_waits(kind):
    policy = Told()
    harness = Harness(policy=policy, max_num_seqs=1)
    harness.add(make_request("a", 3), make_request("b", 3))
    harness.step()
    harness.take(harness.scheduler.abort("b") if kind == "aborted" else harness.scheduler.fail(1, ValueError("broken")))
    assert policy.notes[-1] == ("ended", "b/0")


def test_every_output_token_is_told_once_and_every_end():
    """Under pressure, with forks, stop tokens, and drafts beyond an end: what was told is what came out."""
    policy = Told()
    harness = crowded(policy=policy)
    harness.run().check_outputs()
    assert harness.preempted
    assert harness.num_accepted
    told = defaultdict(int)
    for kind, name, *numbers in policy.notes:
        told[name.partition("/")[0]] += numbers[1] if kind == "computed" else 0
    came_out = defaultdict(int)
    for (request_id, _), tokens in harness.outputs.items():
        came_out[request_id] += len(tokens)
    assert told == came_out
    kinds = Counter(note[:2] for note in policy.notes)
    assert all(kinds["ended", f"{request_id}/{index}"] == 1 for request_id, index in harness.ends)


def test_chunks_of_what_was_aborted_are_not_told():
    policy = Told()
    harness = Harness(policy=policy)
    harness.add(make_request("a", 3), make_request("b", 3))
    plan = harness.schedule()
    sampled = harness.execute(plan)
    harness.take(harness.scheduler.abort("a"))
    harness.take(harness.scheduler.update(plan, sampled))
    assert policy.notes == [("waiting", "a/0"), ("waiting", "b/0"), ("ended", "a/0"), ("computed", "b/0", 3, 1)]


def test_an_error_of_a_note_leaves_nothing_half_done():
    """Whichever note raises: a refused request left nothing, and after a lost step everything can be aborted."""
    num_notes = len(run_until_an_error(None).notes)
    kinds = {run_until_an_error(number).notes[-1][0] for number in range(num_notes)}
    assert kinds == {"waiting", "computed", "ended"}


def test_an_error_at_one_completions_end_leaves_the_others_whole():
    """Completion 0 ends at its first token, and the policy fails when it is told; completion 1 goes on."""
    policy, prompt = Told(2), (7, 8, 9)
    harness = Harness(policy=policy)
    harness.scheduler.policy = policy
    end = next_token(prompt, 0)
    assert end != next_token(prompt, 1)
    harness.scheduler.add(make_request("a", prompt, 4, n=2, eos=[end]))
    with pytest.raises(ZeroDivisionError, match="note 2"):
        harness.step()
    assert policy.notes[-1] == ("ended", "a/0")
    policy.fails_at = None
    (chunk,) = harness.scheduler.schedule().chunks
    assert (chunk.start, chunk.token_ids) == (len(prompt), [next_token(prompt, 1)])


def run_until_an_error(number: int | None) -> Told:
    policy = Told(number)
    harness = crowded()
    harness.scheduler.policy = policy
    with suppress(ZeroDivisionError):
        harness.scheduler.add(make_request("late", 5, 3))
        while harness.scheduler.has_unfinished:
            harness.step()
    assert number is None or len(policy.notes) == number + 1, "it raised there, and then nothing more was told"
    told, policy.notes, policy.fails_at = policy.notes, [], None
    harness.scheduler.schedule()
    harness.check_state()
    for request_id in ("a", "b", "c", "d", "late"):
        harness.scheduler.abort(request_id)
    assert not harness.scheduler.has_unfinished
    assert harness.cache.stats().num_in_use == harness.scheduler.num_running == harness.scheduler.num_waiting == 0
    policy.notes = told
    return policy


class TestOnePolicyForSeveralSchedulers:
    @pytest.mark.parametrize("policy", [FairPolicy(), RotatingPolicy(4)], ids=str)
    def test_each_scheduler_has_counters_of_its_own(self, policy):
        """Beside a scheduler that serves others, the log of a run is what it is alone."""

        def play(*tenants: str) -> Harness:
            harness = Harness(policy=policy, max_num_seqs=3, budget=4, prefix_caching=False)
            for i, tenant in enumerate(tenants):
                harness.add(make_request(f"{tenant}{i}", 3 + 5 * (i % 3), 3, tenant=tenant))
            return harness

        alone = play(*"aaabbb").run()
        other, beside = play(*"aaaaaaaaab"), play(*"aaabbb")
        while beside.scheduler.has_unfinished:
            other.step()
            beside.step()
        assert beside.log == alone.log
        assert beside.scheduler.policy == policy, "with the same parameters"

    def test_an_assigned_policy_starts_anew(self):
        policy = FairPolicy()
        harness = Harness(policy=policy, prefix_caching=False)
        harness.add(make_request("a", 4, 4, tenant="a"))
        harness.run()
        assert harness.scheduler.policy.counters["a"] > 0
        assert policy.counters["a"] == 0
        harness.scheduler.policy = harness.scheduler.policy
        assert harness.scheduler.policy.counters["a"] == 0

    @pytest.mark.parametrize("policy", [FairPolicy(), RotatingPolicy(4)], ids=str)
    def test_what_was_there_before_the_policy_is_served_too(self, policy):
        harness = crowded()
        for _ in range(4):
            harness.step()
        assert harness.scheduler.num_waiting
        harness.scheduler.policy = policy
        harness.add(make_request("late", 5, 3, tenant="late"))
        harness.run().check_outputs()
