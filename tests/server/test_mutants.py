"""Small bugs in the engine's thread and in the quotas, which the tests must notice."""

from types import ModuleType

import pytest

from tests import test_async_llm
from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
from tests.mutation import KillTable, Mutant
from tests.server import test_tenants
from twophase import LLM

IMPATIENCE_S = 2  # what a mutant never does is not waited for


@pytest.fixture
def llm(tiny_folder):  # noqa: F811
    """One for each: a mutant leaves it in any state."""
    return LLM(tiny_folder, num_kv_blocks=128, block_size=4)


def thread_mutant(name, old, new, test, **arguments):
    def check(module: ModuleType, llm) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(test_async_llm, "AsyncLLM", module.AsyncLLM)
            if "mutant" in module.__name__:
                patch.setattr(test_async_llm, "PATIENCE_S", IMPATIENCE_S)
            test(llm, **arguments)

    return pytest.param(Mutant(name, "twophase_features.serving.async_llm", old, new), check, id=name)


def tenants_mutant(name, old, new, *tests):
    def check(module: ModuleType, llm) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for part in ("Account", "Quota", "read_tenants"):
                patch.setattr(test_tenants, part, getattr(module, part))
            for test in tests:
                test()

    return pytest.param(Mutant(name, "twophase_server.tenants", old, new), check, id=name)


def on_a_clock(test):
    return lambda: test(test_tenants.Clock())


MUTANTS = [
    thread_mutant("the newest one's age", "(job for job in self._jobs.values() if not job.is_scheduled)", "(job for job in reversed(self._jobs.values()) if not job.is_scheduled)", test_async_llm.test_the_queue_ages_while_a_step_hangs),
    thread_mutant("who runs ages still", ".is_scheduled = True", ".is_scheduled = False", test_async_llm.test_the_queue_ages_while_a_step_hangs),
    thread_mutant("one more may wait", "num_waiting >= self._max_queue", "num_waiting > self._max_queue", test_async_llm.test_a_full_queue),
    thread_mutant("who runs still waits", "for request_id, *_ in step.chunks:", "for request_id, *_ in ():", test_async_llm.test_a_full_queue),
    thread_mutant("who left keeps its place in the queue", "            del self._jobs[job.request_id]\n", "", test_async_llm.test_whoever_leaves_the_queue_makes_room),
    thread_mutant("the engine is not told of an abort", "output = self._engine.abort(request_id)", "output = None", test_async_llm.test_who_leaves_costs_one_step_at_most, leave=test_async_llm.close),
    thread_mutant("deadlines are not looked at", "        self._expire()\n", "", test_async_llm.test_a_deadline_in_the_queue),
    thread_mutant("a drain is not told to newcomers", "if self.is_draining:", "if False:", test_async_llm.test_a_drain_finishes_what_was_accepted),
    thread_mutant("requests outlive a close", "                self._abort_in_engine(request_id)\n        except", "                pass\n        except", test_async_llm.test_after_close_the_llm_is_yours_again),
    thread_mutant("an old stream aborts a new request of its id", "            if self._jobs.get(job.request_id) is not job:\n                return False", "            if False:\n                return False", test_async_llm.test_a_late_abort_harms_nobody),
    tenants_mutant("a quota piles up", "min(self.per_minute, self._left + (now_s - self._since_s) * per_s)", "self._left + (now_s - self._since_s) * per_s", on_a_clock(test_tenants.test_requests_come_back_evenly)),
    tenants_mutant("tokens are free", '(("requests_per_minute", self._requests), ("tokens_per_minute", self.tokens))', '(("requests_per_minute", self._requests),)', on_a_clock(test_tenants.test_tokens_are_paid_afterwards)),
    tenants_mutant("a request that has ended still counts", "            self.num_running -= 1\n", "            pass\n", on_a_clock(test_tenants.test_requests_at_once)),
    tenants_mutant("salts run into each other", '{len(self.name)}:{self.name}:{own}"', '{self.name}:{own}"', test_tenants.test_no_two_tenants_have_a_salt_in_common),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("mutant", "check"), MUTANTS)
def test_mutant_is_killed(mutant, check, llm):
    KillTable.record(mutant, lambda module: check(module, llm))
