"""Nothing is left half-done: faults injected everywhere, steps dropped at every stage."""

import pytest

from tests.cache.shadow import snapshot
from tests.scheduling.harness import Harness, make_request
from twophase.cache.manager import CacheManager
from twophase.cache.window import SlidingWindow
from twophase.core.errors import InvalidRequestError
from twophase.scheduling.policies import PriorityPolicy
from twophase.scheduling.policy import Policy

OPERATIONS = ("open", "num_blocks_needed", "grow", "publish", "fork", "close", "truncate")
WINDOWED_OPERATIONS = (*OPERATIONS, "num_blocks_to_come", "num_tokens_within", "restore")


class FaultyCache(CacheManager):
    """Raises, once, instead of doing the `fail_at`-th operation asked of it."""

    def __init__(self, *args, fail_at: int = -1, operations=OPERATIONS) -> None:
        super().__init__(*args)
        self.fail_at = fail_at
        self.calls: list[str] = []
        self.is_inside = False
        for operation in operations:
            setattr(self, operation, self._faulty(operation, getattr(super(), operation)))

    def _faulty(self, name, operation):
        def call(*args, **kwargs):
            if not self.is_inside:  # the manager's own calls don't count
                self.calls.append(name)
                if len(self.calls) - 1 == self.fail_at:
                    raise MemoryError(f"injected into {name}")
            self.is_inside, was_inside = True, self.is_inside
            try:
                return operation(*args, **kwargs)
            finally:
                self.is_inside = was_inside

        return call


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


def test_the_crowded_run_is_crowded():
    harness = crowded(cache=FaultyCache(7, 4)).run()
    harness.check_outputs()
    assert harness.preempted
    assert set(harness.cache.calls) == set(OPERATIONS)


def test_a_fault_in_any_cache_operation_fails_one_sequence_alone():
    num_calls = len(crowded(cache=FaultyCache(7, 4)).run().cache.calls)
    failed_in = set()
    for fail_at in range(num_calls):
        cache = FaultyCache(7, 4, fail_at=fail_at)
        harness = crowded(cache=cache).run()
        failed = [key for key, (reason, _) in harness.ends.items() if reason == "error"]
        assert len({request_id for request_id, _ in failed}) == 1, f"call {fail_at} failed {failed}"
        harness.check_outputs(but=frozenset(failed[0][0]))
        failed_in.add(cache.calls[fail_at])
    assert failed_in == set(OPERATIONS)


def test_a_fault_in_any_operation_of_a_windowed_cache_fails_one_sequence_alone():
    window = SlidingWindow(6, 2)

    def run(fail_at: int) -> Harness:
        cache = FaultyCache(8, 4, True, window, fail_at=fail_at, operations=WINDOWED_OPERATIONS)
        return crowded(cache=cache, window=window, num_swap_blocks=8).run()

    sound = run(fail_at=-1)
    sound.check_outputs()
    assert sound.preempted
    assert set(sound.cache.calls) == set(WINDOWED_OPERATIONS), "the run exercises too little"
    for fail_at in range(len(sound.cache.calls)):
        harness = run(fail_at)
        failed = {request_id for (request_id, _), (reason, _) in harness.ends.items() if reason == "error"}
        assert len(failed) == 1, f"call {fail_at} failed {failed}"
        harness.check_outputs(but=frozenset(failed))


def test_the_error_says_what_went_wrong_for_each_completion():
    harness = Harness(cache=FaultyCache(64, 4, fail_at=3))
    harness.add(make_request("a", 5, 4, n=3))
    plan = harness.schedule()
    updates = harness.scheduler.update(plan, harness.execute(plan))
    assert harness.cache.calls == ["open", "num_blocks_needed", "grow", "publish", "close"]
    assert [update.index for update in updates] == [0, 1, 2]
    assert {update.error for update in updates} == {"MemoryError: injected into publish"}


def test_a_policy_that_raises_leaves_nothing_behind():
    class Moody(Policy):
        def rank(self, sequence):
            if sequence.index == 2 or sequence.request.request_id == "bad":
                raise ZeroDivisionError("no rank")
            return PriorityPolicy().rank(sequence)

        def plan(self, step):
            PriorityPolicy().plan(step)

    harness = Harness()
    harness.scheduler.policy = Moody()
    with pytest.raises(InvalidRequestError, match="cannot rank request 'bad': ZeroDivisionError: no rank"):
        harness.scheduler.add(make_request("bad", 5))
    assert not harness.scheduler.has_unfinished
    harness.add(make_request("a", 5, n=2), make_request("b", 6, n=3))
    harness.run(20).check_outputs(but=frozenset("b"))
    assert {harness.ends["b", index] for index in range(3)} == {("error", None)}


@pytest.mark.parametrize("stage", ["planned", "copied", "written", "sampled"])
@pytest.mark.parametrize("every", [2, 3])
def test_dropped_steps_change_no_output(stage, every):
    """The engine loses every n-th step, having run it up to some stage, and just schedules again."""
    harness = crowded()
    attempt = 0
    while harness.scheduler.has_unfinished:
        attempt += 1
        if attempt % every == 0:
            plan = harness.schedule()
            if stage == "copied":
                harness.shadow.move(plan)
            elif stage in ("written", "sampled"):
                harness.execute(plan)
            computed = {i: sequence.num_computed_tokens for i, sequence in harness.scheduler.sequences.items()}
            tokens = {i: list(sequence.token_ids) for i, sequence in harness.scheduler.sequences.items()}
            harness.check_state()
            assert computed == {i: s.num_computed_tokens for i, s in harness.scheduler.sequences.items()}
            assert tokens == {i: s.token_ids for i, s in harness.scheduler.sequences.items()}
        harness.step()
    harness.run().check_outputs()


def test_scheduling_again_plans_the_same_and_takes_nothing_more():
    harness = Harness()
    harness.add(make_request("a", 5, 6), make_request("b", 9, 6))
    for _ in range(3):
        first = harness.schedule()
        before = snapshot(harness.cache)
        assert harness.schedule() == first
        assert snapshot(harness.cache) == before
        harness.step()


def test_a_copy_that_may_not_have_happened_is_recomputed():
    harness = Harness()
    harness.add(make_request("a", 5, 6, n=2))
    harness.step()
    plan = harness.schedule()
    assert len(plan.copies) == 1
    replanned = harness.schedule()  # the first plan never ran
    assert replanned.preempted == (0,)
    assert replanned.copies == ()
    harness.step()
    harness.run().check_outputs()


@pytest.mark.parametrize("drop_step", [False, True])
def test_the_runner_fails_one_sequence_of_a_step(drop_step):
    """Either the rest of the step counts, or it is planned again without the culprit."""
    harness = crowded()
    for _ in range(3):
        harness.step()
    plan = harness.schedule()
    culprit = plan.chunks[0].seq_id
    request_id = harness.scheduler.sequences[culprit].request.request_id
    sampled = harness.execute(plan)
    del sampled[culprit]
    harness.take(harness.scheduler.fail(culprit, ValueError("NaN in the logits")))
    if not drop_step:
        harness.take(harness.scheduler.update(plan, sampled))
    harness.check_state()
    harness.run().check_outputs(but=frozenset(request_id))
    assert ("error", None) in harness.ends.values()


def test_abort_between_schedule_and_update():
    harness = crowded()
    harness.step()
    plan = harness.schedule()
    sampled = harness.execute(plan)
    harness.take(harness.scheduler.abort("a"))
    harness.take(harness.scheduler.update(plan, sampled))
    harness.check_state()
    harness.run().check_outputs(but=frozenset("a"))


def test_an_interrupt_inside_admission_keeps_no_blocks(monkeypatch):
    harness = crowded()
    monkeypatch.setattr(harness.cache, "grow", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        harness.scheduler.schedule()
    monkeypatch.undo()
    harness.check_state()
    assert harness.cache.stats().num_in_use == 0
    harness.run().check_outputs()
