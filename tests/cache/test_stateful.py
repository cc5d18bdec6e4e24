"""Hypothesis looks for a short sequence of events that breaks the cache, and shrinks what it finds."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.cache.histories import SALTS, History, Live
from tests.cache.plain import plain_manager_class

TOKEN = st.integers(0, 1)  # a small vocabulary, so that prefixes meet
PLAIN_CACHE = plain_manager_class()


class CacheMachine(RuleBasedStateMachine):
    """Every event of `History`, in any order; the invariants are checked after each."""

    history: History

    def pick(self, data) -> Live:
        return self.history.live[data.draw(st.integers(0, len(self.history.live) - 1), label="sequence")]

    @initialize(num_blocks=st.integers(1, 8), block_size=st.integers(1, 4))
    def begin(self, num_blocks, block_size):
        self.history = History(PLAIN_CACHE, num_blocks, block_size)

    @rule(token_ids=st.lists(TOKEN, min_size=1, max_size=12), salt=st.sampled_from(SALTS[1:]))
    def start(self, token_ids, salt):
        self.history.start(Live(token_ids, salt))

    @precondition(lambda self: self.history.preempted)
    @rule()
    def resume(self):
        self.history.start(self.history.preempted[0])

    @precondition(lambda self: self.history.live)
    @rule(data=st.data(), num_tokens=st.integers(1, 12), num_ahead=st.integers(0, 3), publishes=st.booleans())
    def prefill(self, data, num_tokens, num_ahead, publishes):
        self.history.step(self.pick(data), num_tokens, num_ahead=num_ahead, publishes=publishes)

    @precondition(lambda self: self.history.live)
    @rule(data=st.data(), token_id=TOKEN)
    def decode(self, data, token_id):
        sequence = self.pick(data)
        sequence.token_ids.append(token_id)
        self.history.step(sequence, len(sequence.token_ids))

    @precondition(lambda self: self.history.live)
    @rule(data=st.data())
    def fork(self, data):
        self.history.fork(self.pick(data))

    @precondition(lambda self: self.history.live)
    @rule(data=st.data(), num_tokens=st.integers(0, 12))
    def fault(self, data, num_tokens):
        self.history.fault(self.pick(data), num_tokens)

    @precondition(lambda self: self.history.live)
    @rule(data=st.data())
    def close(self, data):
        self.history.close(self.pick(data))

    @precondition(lambda self: self.history.live)
    @rule(data=st.data())
    def preempt(self, data):
        self.history.preempt(self.pick(data))

    @rule()
    def reset(self):
        self.history.reset()

    @invariant()
    def nothing_is_stale_and_the_books_agree(self):
        self.history.check()

    def teardown(self):
        self.history.finish()


def run(max_examples: int, step_count: int) -> None:
    # Shared, slow machines: time is no error here.
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        CacheMachine,
        settings=settings(
            max_examples=max_examples, stateful_step_count=step_count, deadline=None, suppress_health_check=checks
        ),
    )


def test_no_short_sequence_of_events_breaks_the_cache():
    run(max_examples=100, step_count=30)


@pytest.mark.full
def test_no_long_sequence_of_events_breaks_the_cache():
    run(max_examples=500, step_count=60)
