"""Thousands of random histories against the shadow-KV oracle."""

from collections import Counter

import pytest

from tests.cache.histories import NewCache, random_history
from tests.cache.plain import plain_manager_class, typed_cache

EVERY_EVENT = (
    "hit", "hit with gaps", "miss", "out of blocks", "copy on write", "fork", "reset", "block freed", "offered", "loaded",
    "lost by the tier", "verify", "reject", "cut", "reserved in groups", "refused", "hit with gaps in groups",
    "copy on write in groups", "block freed in groups", "loaded in groups", "reject in groups",
)  # fmt: skip


def run_histories(new_cache: NewCache, seeds: range) -> Counter:
    events: Counter = Counter()
    for seed in seeds:
        try:
            events += random_history(new_cache, seed)
        except Exception as error:
            error.add_note(f"in random_history(..., seed={seed})")
            raise
    return events


def test_1000_random_histories_are_clean():
    events = run_histories(plain_manager_class(), range(1000))
    assert all(events[event] > 30 for event in EVERY_EVENT), f"the histories exercise too little: {events}"


def test_random_histories_with_types_checked_are_clean():
    run_histories(typed_cache, range(1000, 1040))


@pytest.mark.full
def test_6500_more_random_histories_are_clean():
    run_histories(plain_manager_class(), range(1000, 7500))
