"""Nothing is left half-done: steps dropped at every stage, sequences that fail, requests that are aborted."""

import pytest

from tests.scheduling.harness import Harness, make_request
from twophase.scheduling.policy import Policy, PriorityPolicy


def crowded(**options) -> Harness:
    """A run with chunks, hits, forks, copies, preemptions and drafts."""
    options = {"num_blocks": 7, "max_num_seqs": 4, "budget": 6, "max_drafts": 2} | options
    harness = Harness(**options)
    harness.add(
        make_request("a", range(7), 16),
        make_request("b", range(5), 12, n=2),
        make_request("c", [*range(4), 9, 9], 16, priority=-1, eos=[3]),
        make_request("d", range(7), 14),
    )
    return harness


def test_a_policy_that_cannot_rank_a_request_changes_nothing():
    class Moody(Policy):
        def rank(self, sequence):
            if sequence.request.request_id == "bad":
                raise ZeroDivisionError("no rank")
            return PriorityPolicy().rank(sequence)

        def plan(self, step):
            PriorityPolicy().plan(step)

    harness = Harness()
    harness.scheduler.policy = Moody()
    with pytest.raises(ZeroDivisionError, match="no rank"):
        harness.scheduler.add(make_request("bad", 5))
    assert not harness.scheduler.has_unfinished
    harness.add(make_request("a", 5, n=2))
    harness.run(20).check_outputs()


@pytest.mark.parametrize("stage", ["planned", "written"])
@pytest.mark.parametrize("options", [{}, {"num_host_blocks": 6, "reserve_growth": False}], ids=["", "offloading"])
def test_dropped_steps_change_no_output(stage, options):
    """The engine loses every second step, having run it up to some stage, and just schedules again."""
    harness = crowded(**options)
    for attempt in range(1000):
        if not harness.scheduler.has_unfinished:
            break
        if attempt % 2:
            plan = harness.schedule()
            if stage == "written":
                harness.execute(plan)
            computed = {i: sequence.num_computed_tokens for i, sequence in harness.scheduler.sequences.items()}
            tokens = {i: list(sequence.token_ids) for i, sequence in harness.scheduler.sequences.items()}
            harness.check_state()
            assert computed == {i: s.num_computed_tokens for i, s in harness.scheduler.sequences.items()}
            assert tokens == {i: s.token_ids for i, s in harness.scheduler.sequences.items()}
        harness.step()
    harness.run().check_outputs()


def test_a_copy_is_done_when_it_is_planned_and_told_until_a_step_is_done():
    harness = Harness()
    harness.add(make_request("a", 5, 6, n=2))
    harness.step()
    plan = harness.schedule()
    assert len(plan.copies) == 1
    replanned = harness.schedule()  # the first plan never ran
    assert replanned.preempted == ()
    assert replanned.copies == plan.copies
    harness.step()
    assert harness.schedule().copies == ()
    harness.run().check_outputs()


def test_a_copy_that_fails_fails_its_sequence_alone():
    harness = Harness()
    harness.add(make_request("a", 5, 6, n=3))
    harness.step()
    copy_blocks, refused = harness.shadow.copy_blocks, []

    def fail_once(copies):
        if not refused:
            refused.extend(copies)
            raise OSError("out of memory")
        copy_blocks(copies)

    harness.scheduler.planner.copy_blocks = fail_once
    plan = harness.schedule()
    ((culprit, error),) = plan.failed.items()
    assert str(error) == "out of memory"
    assert culprit not in {chunk.seq_id for chunk in plan.chunks}
    assert len(plan.chunks) == 2
    sampled = harness.execute(plan)
    harness.take(harness.scheduler.fail(culprit, error))
    harness.take(harness.scheduler.update(plan, sampled))
    harness.run()
    assert sorted(reason for reason, _ in harness.ends.values()) == ["error", "length", "length"]
