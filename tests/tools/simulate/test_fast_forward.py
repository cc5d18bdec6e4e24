"""Many decode steps at once leave what one by one leave: every time, decision, block id and cached block."""

import random

import pytest

from tests.cache.integrity import check_integrity
from tests.tools.simulate.runs import make_scheduler, random_requests, request
from twophase.config import ADMISSIONS
from twophase.core.errors import OutOfBlocksError
from twophase.core.plan import SampledToken
from twophase.scheduling.policy import PriorityPolicy
from twophase_features.policies.ageing import AgeingPolicy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.policies.fair_shares import FairPolicy
from twophase_features.policies.request_level import DynamicPolicy, StaticPolicy
from twophase_features.policies.round_robin import RotatingPolicy
from twophase_features.policies.whole_prompts import ContinuousPolicy, PrefillFirstPolicy
from twophase_tools.simulate.cost_model import LinearCostModel
from twophase_tools.simulate.fast_forward import num_repeats, repeat_decodes, repeated_sequences
from twophase_tools.simulate.simulator import simulate

POLICIES = (
    PriorityPolicy(),
    AgeingPolicy(patience_s=0.2),
    ChunkedPrefillPolicy(5),
    ContinuousPolicy(),
    PrefillFirstPolicy(),
    PrefillFirstPolicy(max_stalled_steps=2),
    StaticPolicy(3),
    DynamicPolicy(3, 0.3),
    DeadlinePolicy(),
    RotatingPolicy(3),
    FairPolicy(),
)
COSTS = LinearCostModel(0.01, 0.001, 0.0003, 0.00007, 0.00001, 0.0001, 0.00003, 0.0002, 0.00005)


def state_of(scheduler):
    """Everything a later decision could depend on."""
    cache = scheduler.cache
    rows = [
        (
            sequence.seq_id,
            sequence.status,
            tuple(sequence.token_ids),
            sequence.num_computed_tokens,
            sequence.num_preemptions,
            None if sequence.table is None else (tuple(sequence.table.block_ids), sequence.table.num_tokens),
            None if sequence.table is None else sequence.table.publish_at,
        )
        for sequence in scheduler.sequences.values()
    ]
    return rows, cache.stats(), list(cache._pool._cached), list(cache._pool._blank)


@pytest.mark.parametrize("seed", range(33))
def test_random_workloads_run_alike(seed):
    """Pressure, sharing, forks, priorities: times and traces are equal to the last bit, and so is what is left."""
    rng = random.Random(seed)
    longest = rng.choice([16, 40])
    block_size = rng.choice([1, 3, 4])
    policy = POLICIES[seed % len(POLICIES)]
    offloading = {"num_host_blocks": rng.choice([10, 50])} if rng.random() < 0.3 else {}
    options = {
        "num_blocks": 250 if block_size == 1 else rng.choice([30, 45, 200]),
        "block_size": block_size,
        "caching": rng.random() < 0.7,
        "policy": policy,
        "max_num_seqs": rng.choice([3, 6]),
        "budget": rng.choice([6, 16, 64]),
        "reserve_growth": rng.random() < 0.5,
        "watermark": rng.choice([0.0, 0.1]),
    }
    options["admission"] = ADMISSIONS[seed // len(POLICIES) % 3]
    if rng.random() < 0.3:
        options |= {"enable_chunked_prefill": False, "budget": 64}
    options |= offloading
    requests = random_requests(rng, 30, rng.choice([2.0, 20.0, 200.0]), longest)
    by_step, at_once = make_scheduler(**options), make_scheduler(**options)
    expected = simulate(requests, by_step, COSTS, fast_forward=False)
    found = simulate(requests, at_once, COSTS)
    assert found.steps == expected.steps
    assert found.records == expected.records
    assert len(found.records) == 30
    assert state_of(at_once) == state_of(by_step)
    check_integrity(at_once.cache)


def decoding_pair(**options):
    """Two schedulers in the same state, three sequences decoding, and the latest plan of each."""
    pair = []
    for _ in range(2):
        scheduler = make_scheduler(max_num_seqs=3, budget=32, **options)
        for i, length in enumerate((5, 8, 3)):
            scheduler.add(request(f"r{i}", 0, length, 30))
        pair.append((scheduler, step(scheduler)))
    return pair


def step(scheduler):
    plan = scheduler.schedule()
    scheduler.update(plan, {c.seq_id: (SampledToken(-1 - c.seq_id),) * c.num_samples for c in plan.chunks})
    return plan


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5, 11, 28, 29])
@pytest.mark.parametrize("num_waiting", [0, 1])
def test_state_after_k_steps(num_steps, num_waiting):
    (by_step, _), (at_once, plan) = decoding_pair()
    for scheduler in (by_step, at_once):
        if num_waiting:
            scheduler.add(request("late", 0, 4, 4))
    if num_waiting:  # nobody can tell what an arrival changes: it is planned once
        assert repeated_sequences(at_once, plan, is_undisturbed=False) == []
        step(by_step)
        plan = step(at_once)
    sequences = repeated_sequences(at_once, plan, is_undisturbed=True)
    assert len(sequences) == 3
    most = num_repeats(at_once.cache, sequences)
    assert most == 29 - num_waiting  # of 30 tokens, one came with the prompt
    num_steps = min(num_steps, most)
    stats = []
    ended = repeat_decodes(
        at_once, sequences, num_steps, lambda s: -1 - s.seq_id, lambda j: stats.append((j, in_use(at_once)))
    )
    assert ended == (sequences if num_steps == most else [])
    expected = []
    for j in range(num_steps):
        step(by_step)
        expected.append((j, in_use(by_step)))
    assert stats == expected
    assert state_of(at_once) == state_of(by_step)
    assert step(at_once).chunks == step(by_step).chunks


def in_use(scheduler):
    stats = scheduler.cache.stats()
    return stats.num_in_use, stats.num_cached, stats.num_free


@pytest.mark.parametrize("num_blocks", range(10, 31, 2))
def test_stops_before_blocks_run_out(num_blocks):
    """As many steps as the pool allows, and not one more."""
    _, (scheduler, plan) = decoding_pair(num_blocks=num_blocks)
    sequences = repeated_sequences(scheduler, plan, is_undisturbed=True)
    if not sequences:  # the pool was too small for all three
        assert scheduler.num_running < 3
        return
    most = num_repeats(scheduler.cache, sequences)
    # They end with 34, 37 and 32 computed tokens: 9 + 10 + 8 blocks of 4.
    assert (most == 29) == (num_blocks >= 27)
    ended = repeat_decodes(scheduler, sequences, most, lambda s: -1 - s.seq_id)
    check_integrity(scheduler.cache)
    assert len(ended) == (3 if most == 29 else 0)
    if ended:
        return
    with pytest.raises(OutOfBlocksError):
        _grow_all(scheduler.cache, sequences)


def _grow_all(cache, sequences):
    for sequence in sequences:
        cache.grow(sequence.table, len(sequence.token_ids))


@pytest.mark.parametrize(("max_num_seqs", "num_places"), [(4, 0), (5, 1)])
def test_a_policy_that_bides_its_time_repeats_for_want_of_places_alone(max_num_seqs, num_places):
    """It asks before it decodes once they have stood, and behind them otherwise: there may be more tokens then."""
    policy = PrefillFirstPolicy(max_stalled_steps=1)
    scheduler = make_scheduler(policy=policy, max_num_seqs=max_num_seqs, budget=32, enable_chunked_prefill=False)
    for i, length in enumerate((5, 8, 3)):
        scheduler.add(request(f"r{i}", 0, length, 12))
    step(scheduler)
    scheduler.add(request("next", 0, 5, 12))
    step(scheduler)
    scheduler.add(request("late", 0, 32, 4))
    plan = step(scheduler)
    assert (plan.num_decodes, scheduler.planner.num_free_seqs) == (4, num_places)
    assert len(repeated_sequences(scheduler, plan, is_undisturbed=True)) == (0 if num_places else 4)
    assert len(step(scheduler).chunks) == (1 if num_places else 4)


def test_what_is_not_repeated():
    _, (scheduler, plan) = decoding_pair()
    sequences = repeated_sequences(scheduler, plan, is_undisturbed=True)
    assert [sequence.seq_id for sequence in sequences] == [0, 1, 2]
    scheduler.abort("r1")
    assert [s.seq_id for s in repeated_sequences(scheduler, plan, is_undisturbed=False)] == [0, 2]
    forking = make_scheduler(budget=16)
    forking.add(request("forks", 0, 5, 9, n=2))
    plan = step(forking)
    assert repeated_sequences(forking, plan, is_undisturbed=True) == []  # their first step copies a block
    plan = step(forking)
    assert len(repeated_sequences(forking, plan, is_undisturbed=True)) == 2
    chunking = make_scheduler(budget=4)
    chunking.add(request("long", 0, 9, 9))
    assert repeated_sequences(chunking, step(chunking), is_undisturbed=True) == []
