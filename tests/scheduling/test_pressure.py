"""Random workloads in pools far too small: every completion is what it would be alone, and every block comes back."""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.scheduling.harness import EOS, Harness, make_request
from twophase.core.errors import InvalidRequestError
from twophase.scheduling.policy import PriorityPolicy
from twophase_features.policies.ageing import AgeingPolicy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.policies.fair_shares import FairPolicy
from twophase_features.policies.request_level import DynamicPolicy, StaticPolicy
from twophase_features.policies.round_robin import RotatingPolicy
from twophase_features.policies.whole_prompts import ContinuousPolicy, PrefillFirstPolicy
from twophase_features.windows.sliding_window import SlidingWindow


def random_harness(rng: random.Random, **options) -> Harness:
    block_size = rng.choice([1, 2, 4])
    max_num_seqs = rng.randint(1, 6)
    if rng.random() < 0.4:
        options = random_window(rng, block_size) | options
    return Harness(
        **{
            "block_size": block_size,
            "num_blocks": rng.randint(36, 48) // block_size,
            "max_num_seqs": max_num_seqs,
            "budget": max_num_seqs + rng.randint(0, 12),
            "max_model_len": rng.randint(12, 36),
            "chunked": rng.random() < 0.8,
            "prefix_caching": rng.random() < 0.8,
            "policy": random_policy(rng),
            "reserve_growth": rng.random() < 0.7,
            "watermark": rng.choice([0, 0, 0.1]),
            **({"num_host_blocks": rng.randint(1, 40)} if rng.random() < 0.5 else {}),
            "max_drafts": rng.choice([0, 0, 2, 5]),
            "admission": rng.choice([*["optimistic"] * 6, "reserve", "estimate"]),
        }
        | options
    )


def random_window(rng: random.Random, block_size: int) -> dict:
    """A window, and a pool that holds from one to a few sequences of any length."""
    window = SlidingWindow(rng.randint(1, 14), rng.choice([0, 0, 1, 4, 9]))
    num_blocks = window.max_blocks(block_size) * rng.randint(1, 4) + rng.randint(0, 6)
    return {"window": window, "num_blocks": num_blocks, "max_model_len": rng.randint(12, 60)}


def random_groups(rng: random.Random, block_size: int) -> dict:
    """Groups of layers of which some see a window, and a pool for one to a few of the longest sequences."""
    options = random_window(rng, block_size)
    sees_all, longest = rng.choice(((True, False), (True, False, False), (True, True, False))), rng.randint(12, 40)
    most = -(-longest // block_size), options["window"].max_blocks(block_size)
    num_blocks = sum(most[not is_full] for is_full in sees_all) * rng.randint(1, 3) + rng.randint(0, 6)
    return options | {"sees_all": sees_all, "num_blocks": num_blocks, "max_model_len": longest}


def random_policy(rng: random.Random):
    return rng.choice(
        [
            PriorityPolicy(),
            AgeingPolicy(patience_s=3.0),
            ChunkedPrefillPolicy(max_tokens=rng.randint(1, 12)),
            ContinuousPolicy(),
            PrefillFirstPolicy(max_stalled_steps=rng.choice([None, 2])),
            StaticPolicy(batch_size=rng.randint(1, 4)),
            DynamicPolicy(batch_size=rng.randint(1, 4), timeout_s=rng.choice([0, 2.5, 7])),
            DeadlinePolicy(max_tokens=rng.choice([None, 5])),
            RotatingPolicy(chunk_tokens=rng.randint(1, 5), max_tokens=rng.choice([None, 9])),
            FairPolicy(max_tokens=rng.choice([None, 7])),
        ]
    )


def random_request(rng: random.Random, request_id: str, step_no: int, max_tokens):
    """Prompts over a small alphabet share prefixes with each other and with what others have generated."""
    shared = [1] * rng.randint(0, 12)
    own = [rng.randrange(3) for _ in range(rng.randint(1, 8))]
    return make_request(
        request_id,
        shared + own,
        rng.choice(max_tokens),
        n=rng.choice([1, 1, 1, 2, 3]),
        priority=rng.choice([0, 0, 0, 1, -1]),
        salt=rng.choice(["", "", "x"]),
        arrival_s=float(step_no),
        eos=[EOS],
        ttft_slo_s=rng.choice([None, 3, 30]),
        tenant=rng.choice(["", "a", "b"]),
        stop_token_ids=rng.choice([(), (), (), (5,)]),
        ignore_eos=rng.random() < 0.75,
    )


class Disturber:
    """Aborts, fails and finishes sequences, and drops steps, at random; keeps the ids of requests it cut short."""

    def __init__(self, rng: random.Random, harness: Harness) -> None:
        self.rng = rng
        self.harness = harness
        self.cut: set[str] = set()

    def step(self) -> None:
        harness, scheduler, rng = self.harness, self.harness.scheduler, self.rng
        plan = harness.schedule()
        if rng.random() < 0.5:
            harness.execute(plan)
        if scheduler.sequences:
            sequence = rng.choice(list(scheduler.sequences.values()))
            self.cut.add(sequence.request.request_id)
            how = rng.randrange(3)
            if how == 0:
                harness.take(scheduler.abort(sequence.request.request_id))
            elif how == 1:
                harness.take(scheduler.fail(sequence.seq_id, ValueError("a test says so")))
            else:
                harness.take(scheduler.finish(sequence.seq_id, "stop", "###"))
        harness.check_state()


def play(seed: int, num_requests: int, disturbed: float, max_tokens=(1, 5, 12, 20, 30), **options) -> Harness:
    rng = random.Random(seed)
    harness = random_harness(rng, **options)
    disturber = Disturber(rng, harness)
    num_added = 0
    while num_added < num_requests or harness.scheduler.has_unfinished:
        while num_added < num_requests and len(harness.scheduler.sequences) < 12 and rng.random() < 0.7:
            num_added += 1
            with suppress(InvalidRequestError):  # test_request_validation.py looks into those
                harness.add(random_request(rng, f"r{num_added}", harness.step_no, max_tokens))
        if rng.random() < disturbed:
            disturber.step()
        harness.step()
        assert harness.step_no < 400 * num_requests, "no end in sight"
    harness.run().check_outputs(but=frozenset(disturber.cut))
    return harness


def play_all(seeds: range, disturbed: float, options_of: Callable[[int], dict] = lambda seed: {}) -> Counter:
    """Play a history for each seed; returns how often each kind of event happened in them."""
    events: Counter = Counter()
    for seed in seeds:
        try:
            harness = play(seed, 20, disturbed, **options_of(seed))
        except Exception as error:
            error.add_note(f"in play({seed}, 20, disturbed={disturbed})")
            raise
        events["request"] += len(harness.requests)
        events["step"] += harness.step_no
        events["preemption"] += len(harness.preempted)
        events["hit"] += harness.cache.stats().num_hit_tokens > 0
        events["copy"] += harness.num_copies
        events["windowed step"] += harness.step_no * (harness.window is not None)
        events["block freed"] += harness.num_freed
        events["draft accepted"] += harness.num_accepted
        events["draft rejected"] += harness.num_drafts - harness.num_accepted
        events["block offloaded"] += harness.num_offloaded
        events["block loaded"] += harness.num_loaded
        events[type(harness.scheduler.policy).__name__] += 10
        events[harness.config.admission] += 10
        events["fork"] += sum(index > 0 for _, index in harness.ends)
        events["stop"] += sum(reason == "stop" for reason, _ in harness.ends.values())
    return events


def groups_of(seed: int) -> dict:
    """Layers that see all keys and layers that see a window, in pools for one to a few of the longest sequences."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4])
    return random_groups(rng, block_size) | {"block_size": block_size}


def crowded_groups_of(seed: int) -> dict:
    """All kinds of limits; in every second history all are let in, and some must go."""
    options = {"max_num_seqs": 6, "budget": 12, "reserve_growth": False, "watermark": 0, "num_host_blocks": 80}
    return groups_of(seed) | (options if seed % 2 else {})


@pytest.mark.parametrize("num_histories", [40, pytest.param(300, marks=pytest.mark.full)])
def test_groups_of_layers_with_windows_and_without(num_histories):
    events = play_all(range(num_histories), 0.1, crowded_groups_of)
    kinds = ("preemption", "block loaded", "copy", "block freed", "hit", "draft rejected")
    assert min(events[kind] for kind in kinds) > num_histories // 3, f"the histories exercise too little: {events}"


@pytest.mark.parametrize("num_histories", [60, pytest.param(400, marks=pytest.mark.full)])
@pytest.mark.parametrize("disturbed", [0.0, 0.15], ids=["undisturbed", "aborts, failures and dropped steps"])
def test_outputs_are_as_if_alone(num_histories, disturbed):
    events = play_all(range(60, 60 + num_histories), disturbed)
    assert min(events.values()) > num_histories // 3, f"the histories exercise too little: {events}"


def test_this_test_can_fail():
    """The negative control: one slot overwritten behind the scheduler's back, and the oracle speaks up."""
    harness = Harness()
    harness.add(make_request("a", 6, 4))
    harness.step()
    (block_id, _) = harness.scheduler.sequences[0].table.block_ids
    harness.shadow.slots[4 * block_id + 3] += 1
    with pytest.raises(AssertionError, match="position 3 of 7 reads slot"):
        harness.step()
