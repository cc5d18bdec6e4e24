"""Planted bugs in the transfer of pages, and the tests that find them."""

from types import ModuleType

import pytest

from tests.mutation import KillTable, Mutant
from tests.parallel import test_disaggregation as tests
from tests.parallel import two_engines

PAGES = tests.TestPages()
ROOM = tests.TestRoom()
TROUBLE = tests.TestTrouble()
FAILS = tests.TestTransfersThatFail()
NAMES = ("PrefillWorker", "DecodeEngine", "RemoteTier", "Transfer")


def same_bits(folder):
    PAGES.test_both_sides_hold_the_same_bits(folder, "int8")


def broken(folder):
    TROUBLE.test_a_prompt_that_breaks_the_worker_is_computed_here(folder)


def lives(folder):
    for seed in range(3):
        tests.play(folder, seed)


def orphans(folder):
    TROUBLE.test_a_worker_without_its_decode_side_frees_everything(folder, 1)


def lost_page(folder):
    FAILS.test_tokens_are_those_of_a_single_engine(folder, "greedy", {3})


WORKER, ENGINE, TIER, PAGE, CLOCK = "prefill_worker", "disaggregation", "remote_tier", "pages", "_protocol"

# name, module, old, new, check
MUTANTS = [
    ("nothing travels during a run", WORKER, "        if not keys:\n", "        if True:\n", PAGES.test_a_layer_travels_before_the_next_is_computed),
    ("a broken run counts as sent", WORKER, "        try:\n            yield partial", "        for request_id, ids in sending.items():\n            self._unsent[request_id] = self._unsent[request_id][len(ids) :]\n        try:\n            yield partial", broken),
    ("a block is sent before it is full", WORKER, "(chunk.start + len(chunk.token_ids)) // block_size", "-(-(chunk.start + len(chunk.token_ids)) // block_size)", FAILS.test_every_block_is_sent_once),
    ("every chunk sends all blocks", WORKER, "            self._unsent[request_id] = self._unsent[request_id][len(ids) :]", "            pass", FAILS.test_every_block_is_sent_once),
    ("known blocks travel again", ENGINE, "tuple(keys[num_here:])", "tuple(keys)", PAGES.test_known_prefixes_do_not_travel),
    ("seeds are drawn as pages come", ENGINE, "        if params.seed is None:", "        if False:", tests.test_seeds_are_drawn_in_the_order_of_requests),
    ("the worker is not told", ENGINE, "            if remote.is_submitted:\n                self._sends[remote.rank](wire.Cancel(request_id))\n", "", TROUBLE.test_pages_of_an_aborted_request_are_dropped),
    ("an aborted request keeps its pages", ENGINE, "        output = self._engine.abort(request_id)\n        self._drop(request_id)", "        output = self._engine.abort(request_id)", lives),
    ("what waits for a lost worker waits on", ENGINE, "for request_id in list(self._remote):", "for request_id in ():", lambda folder: TROUBLE.test_a_lost_worker_loses_no_request(folder, 1)),
    ("a failed prompt waits on", ENGINE, "self.num_recomputed += 1\n", "return\n", broken),
    ("pages are kept as long as their request", ENGINE, "if request_id in ended or remote.prepared.metrics.first_scheduled_s is not None:", "if request_id in ended:", PAGES.test_pages_leave_the_tier_when_they_are_loaded),
    ("room is not looked for", TIER, "if len(self._expected.keys() | keys) > self.num_blocks:", "if False:", ROOM.test_a_full_tier_holds_up_the_prefill_side),
    ("a short prompt overtakes", ENGINE, "                    return\n", "                    continue\n", ROOM.test_a_full_tier_holds_up_the_prefill_side),
    ("a prompt too long for the tier waits on", ENGINE, "        if not 0 < len(keys) - num_here <= self._tier.num_blocks:", "        if not 0 < len(keys) - num_here:", ROOM.test_a_prompt_that_the_tier_could_never_hold_is_computed_here),
    ("scores are computed elsewhere", ENGINE, "if request.sampling_params.prompt_logprobs is not None:", "if False:", FAILS.test_a_prompt_whose_logprobs_are_asked_for_is_computed_here),
    ("the policy is asked too late", ENGINE, "        self._scheduler.check(request)\n", "", ROOM.test_what_the_policy_cannot_rank_is_refused_at_once),
    ("an id of a prompt elsewhere is free", ENGINE, "if request.request_id in self._remote:", "if False:", lambda folder: ROOM.test_an_id_is_in_use_wherever_its_prompt_is_computed(folder, (12, 2))),
    ("nobody counts who waits for pages", ENGINE, "stats.num_waiting + len(self._remote)", "stats.num_waiting", ROOM.test_a_full_tier_holds_up_the_prefill_side),
    ("one layer is enough", TIER, "len(block.pages) < num_layers", "not block.pages", lost_page),
    ("a gap is passed over", TIER, "return next((i for i, block in enumerate(blocks) if block is None or len(block.pages) < num_layers), len(keys))", "return sum(block is not None and len(block.pages) == num_layers for block in blocks)", lambda folder: FAILS.test_pages_before_a_hole_are_loaded(folder, 0, 0)),
    ("one of two prompts drops the other's pages", TIER, "if not self._expected[key].num_owners:", "if True:", PAGES.test_a_prompt_that_comes_twice_at_once),
    ("room is never given back", TIER, "del self._expected[key]", "pass", lives),
    ("the tier behind is forgotten", TIER, "return 0 if self._behind is None else self._behind.store(keys, block_ids)", "return 0", lambda folder: ROOM.test_who_is_preempted_there_goes_on_there(folder, "swap")),
    ("blocks go where they came from", PAGE, "targets = torch.tensor([block_ids[row] for row in rows]", "targets = torch.tensor([row for row in rows]", same_bits),
    ("the scales stay behind", PAGE, "zip(kv_cache.storage, parts, strict=True)", "zip(kv_cache.storage[:2], parts, strict=False)", same_bits),
    ("the worker leaves its blocks", WORKER, "for request_id in list(self._unsent):", "for request_id in ():", orphans),
    ("a salt stays at home", ENGINE, "wire.Submit(request.request_id, whole_blocks, request.cache_salt,", 'wire.Submit(request.request_id, whole_blocks, "",', lambda folder: PAGES.test_tenants_share_no_pages_on_either_side(folder, "prompt", "prefill")),
    ("a worker without prompts spins", WORKER, "        if self._engine.has_unfinished_requests():\n            timeout_s", "        if True:\n            timeout_s", ROOM.test_a_worker_with_nothing_to_compute_sleeps),
    ("a policy's wait is slept through", WORKER, "timeout_s = min(timeout_s, self._engine.idle_s)", "timeout_s = timeout_s if self._engine.idle_s else 0.0", ROOM.test_a_worker_whose_policy_waits_sleeps_until_then),
    ("the decode side spins", ENGINE, "IDLE_S if self._remote else 0.0", "0.0", ROOM.test_a_decode_side_that_can_do_nothing_before_pages_come_sleeps),
    ("late sends count as hidden", CLOCK, "return sum(max(0.0, end - max(start, self.end_s)) for start, end in self.sent)", "return 0.0", lambda folder: tests.test_what_a_transfer_hides()),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "module", "old", "new", "check"), MUTANTS, ids=[each[0] for each in MUTANTS])
def test_mutant_is_killed(folder, name, module, old, new, check):
    def with_module(mutated: ModuleType) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for user in (two_engines, tests):
                for symbol in NAMES:
                    if symbol in vars(user) and symbol in vars(mutated):
                        patch.setattr(user, symbol, vars(mutated)[symbol])
            check(folder)

    through = f"twophase_features.parallel.{TIER}" if module == PAGE else None  # which writes the pages
    KillTable.record(Mutant(name, f"twophase_features.parallel.{module}", old, new, through), with_module)
