"""Planted bugs in routers, fleets, scaling and pools, and the tests that find them."""

from types import ModuleType

import pytest

from tests.mutation import KillTable, Mutant
from tests.tools.simulate import test_autoscale as scaling
from tests.tools.simulate import test_pools as pools
from tests.tools.simulate import test_routers as routers

PREFIX = routers.TestPrefixAware()
ROUTERS, FLEET, SCALE, POOLS = (
    f"twophase_tools.simulate.{name}" for name in ("routers", "fleet", "autoscale", "pools")
)


MUTANTS = [
    (Mutant("the most loaded", ROUTERS, "count, least = len(costs), min(costs)", "count, least = len(costs), max(costs)"), routers.test_least_tokens_counts_tokens),
    (Mutant("hits count for nothing", ROUTERS, "- self._num_hit(replica, digests) * self._block_size", ""), PREFIX.test_conversations_stay_where_they_are),
    (Mutant("load counts for nothing", ROUTERS, " + replica.num_outstanding_tokens(request.arrival_s))", ")"), PREFIX.test_load_outweighs_a_hit),
    (Mutant("salts are mixed", ROUTERS, "salt_digest(request.cache_salt)", 'salt_digest("")'), PREFIX.test_salts_are_kept_apart),
    (Mutant("blocks without what precedes them", ROUTERS, "block_digest(digest, tokens", "block_digest(b'', tokens"), PREFIX.test_salts_are_kept_apart),
    (Mutant("nothing is forgotten", ROUTERS, "sent.popitem(last=False)", "break"), PREFIX.test_what_was_sent_long_ago_is_forgotten),
    (Mutant("those that left are remembered", ROUTERS, "self._sent = {replica:", "self._sent |= {replica:"), PREFIX.test_an_engine_that_left_is_forgotten),
    (Mutant("long and short change places", ROUTERS, "if len(request.prompt_token_ids) > self._limit_tokens:", "if len(request.prompt_token_ids) <= self._limit_tokens:"), routers.test_short_prompts_do_not_wait_behind_long_ones),
    (Mutant("ready at once", FLEET, "if life.ready_s <= time_s]", "if True]"), scaling.test_an_engine_takes_requests_when_it_has_started),
    (Mutant("no draining", FLEET, "if not life.replica.num_outstanding(time_s)]", "if True]"), scaling.test_an_engine_drains_before_it_leaves),
    (Mutant("the busiest drains", FLEET, "idlest = min(self._ready", "idlest = max(self._ready"), scaling.test_an_engine_drains_before_it_leaves),
    (Mutant("none is taken back", FLEET, "            if self._draining:\n", "            if False:\n"), scaling.test_one_that_drains_is_taken_back_before_one_is_started),
    (Mutant("workers go before starters", FLEET, "            if self._starting:\n", "            if False:\n"), scaling.test_one_that_starts_is_given_up_first),
    (Mutant("starting is free", FLEET, "else life.end_s) - life.start_s", "else life.end_s) - life.ready_s"), scaling.test_an_engine_takes_requests_when_it_has_started),
    (Mutant("busy since the beginning", FLEET, "self._busy_s = busy_s", "pass"), scaling.test_busy_is_that_of_the_latest_period),
    (Mutant("down at once", SCALE, "return max(wanted, min(num_engines, max(recent for _, recent in self._recent)))", "return wanted"), scaling.test_fewer_only_when_it_was_wanted_for_long),
    (Mutant("never down again", SCALE, "self._recent.popleft()", "break"), scaling.test_fewer_only_when_it_was_wanted_for_long),
    (Mutant("no limits", SCALE, "wanted = min(max(wanted, self.least), self.most)", "pass"), scaling.test_limits_are_kept),
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
            for user in (routers, scaling, pools):
                for symbol, value in list(vars(user).items()):
                    if isinstance(value, type) and value.__module__ == mutant.module and symbol in vars(mutated):
                        patch.setattr(user, symbol, vars(mutated)[symbol])
                if "run_fleet" in vars(user) and mutant.module == FLEET:
                    patch.setattr(user, "run_fleet", mutated.run_fleet)
                if "run_pools" in vars(user) and mutant.module == POOLS:
                    patch.setattr(user, "run_pools", mutated.run_pools)
            check()

    KillTable.record(mutant, with_module)
