"""Planted bugs in routers and pools, and the tests that find them."""

from types import ModuleType

import pytest

from tests.mutation import KillTable, Mutant
from tests.tools.simulate import test_pools as pools
from tests.tools.simulate import test_routers as routers

PREFIX = routers.TestPrefixAware()
ROUTERS, POOLS = (f"twophase_tools.simulate.{name}" for name in ("routers", "pools"))


MUTANTS = [
    (Mutant("the most loaded", ROUTERS, "count, least = len(costs), min(costs)", "count, least = len(costs), max(costs)"), routers.test_least_tokens_counts_tokens),
    (Mutant("hits count for nothing", ROUTERS, "- self._num_hit(replica, digests) * self._block_size", ""), PREFIX.test_conversations_stay_where_they_are),
    (Mutant("load counts for nothing", ROUTERS, " + replica.num_outstanding_tokens(request.arrival_s))", ")"), PREFIX.test_load_outweighs_a_hit),
    (Mutant("salts are mixed", ROUTERS, "salt_digest(request.cache_salt)", 'salt_digest("")'), PREFIX.test_salts_are_kept_apart),
    (Mutant("blocks without what precedes them", ROUTERS, "block_digest(digest, tokens", "block_digest(b'', tokens"), PREFIX.test_salts_are_kept_apart),
    (Mutant("nothing is forgotten", ROUTERS, "sent.popitem(last=False)", "break"), PREFIX.test_what_was_sent_long_ago_is_forgotten),
    (Mutant("those that left are remembered", ROUTERS, "self._sent = {replica:", "self._sent |= {replica:"), PREFIX.test_an_engine_that_left_is_forgotten),
    (Mutant("long and short change places", ROUTERS, "if len(request.prompt_token_ids) > self._limit_tokens:", "if len(request.prompt_token_ids) <= self._limit_tokens:"), routers.test_short_prompts_do_not_wait_behind_long_ones),
    (Mutant("links are shared by all", POOLS, "self._free_s.get(replica, 0.0)", "max(self._free_s.values(), default=0.0)"), pools.test_prompts_share_a_sender_s_link),
    (Mutant("links are never busy", POOLS, "self._free_s[replica] = end_s - self._link.latency_s", "pass"), pools.test_prompts_share_a_sender_s_link),
    (Mutant("latencies add up", POOLS, "= end_s - self._link.latency_s", "= end_s"), pools.test_prompts_share_a_sender_s_link),
    (Mutant("all of the output there", POOLS, "max_tokens=1, stop=()", "stop=()"), pools.test_times_by_hand),
    (Mutant("arrivals from the future", POOLS, "self._heap[0][0] <= time_s:", "True:"), pools.test_who_arrives_first_goes_on_first),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=[mutant.name for mutant, _ in MUTANTS])
def test_mutant_is_killed(mutant, check):
    def with_module(mutated: ModuleType) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for user in (routers, pools):
                for symbol, value in list(vars(user).items()):
                    if isinstance(value, type) and value.__module__ == mutant.module and symbol in vars(mutated):
                        patch.setattr(user, symbol, vars(mutated)[symbol])
                if "run_pools" in vars(user) and mutant.module == POOLS:
                    patch.setattr(user, "run_pools", mutated.run_pools)
            check()

    KillTable.record(mutant, with_module)
