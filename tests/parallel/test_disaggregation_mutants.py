"""Planted bugs in the handing over of pages, and the tests that find them."""

from types import ModuleType

import pytest

from tests.mutation import KillTable, Mutant
from tests.parallel import test_disaggregation as tests
from tests.parallel import two_engines

PAGES = tests.TestPages()
ROOM = tests.TestRoom()
TROUBLE = tests.TestTrouble()
EQUAL = tests.TestEqualTokens()
FAILS = tests.TestTransfersThatFail()
NAMES = ("PrefillWorker", "DecodeEngine", "KVReceiver", "TransferClock")


def same_bits(folder):
    PAGES.test_both_sides_hold_the_same_bits(folder, "int8")


def lives(folder):
    for seed in range(3):
        tests.play(folder, seed)


def several(folder):
    EQUAL.test_as_a_single_engine(folder, "several")


def broken(folder):
    TROUBLE.test_a_prompt_that_breaks_fails_alone(folder, "write")


def orphans(folder):
    TROUBLE.test_a_worker_without_its_decode_side_frees_everything(folder, 2)


def lost_pages(folder, num_lost):
    FAILS.test_tokens_are_those_of_a_single_engine(folder, "greedy", num_lost, 0 if num_lost == 1 else 7)


def unwritten(folder):
    with pytest.MonkeyPatch.context() as patch:
        FAILS.test_pages_that_cannot_be_written_are_missing(folder, patch)


WORKER, ENGINE, PAGE, CLOCK = "prefill_worker", "disaggregation", "pages", "_transfers"

# name, module, old, new, check
MUTANTS = [
    ("nothing travels during a run", WORKER, "        if not ranges:\n", "        if True:\n", PAGES.test_a_layer_travels_before_the_next_is_computed),
    ("blocks are not held", WORKER, "if is_last and outgoing.table is None:", "if False:", same_bits),
    ("held blocks are not released", WORKER, "self._scheduler.ledger.release(outgoing.table)", "pass", lives),
    ("a broken run counts as sent", WORKER, "        try:\n            yield send_layer\n        finally:", "        for each in ranges:\n            self._outgoing[each.request_id].num_sent = each.first_block + each.num_blocks\n        try:\n            yield send_layer\n        finally:", broken),
    ("known blocks travel again", ENGINE, "each.num_cached_tokens // block_size for each", "0 for each", PAGES.test_known_prefixes_do_not_travel),
    ("seeds stay at home", ENGINE, "replace(state.request.sampling_params, seed=state.seed)", "state.request.sampling_params", lambda folder: EQUAL.test_as_a_single_engine(folder, "unseeded")),
    ("pages of an aborted request are written", ENGINE, "        self._receiver.forget(request_id)  # before", "        pass  # before", TROUBLE.test_pages_on_their_way_to_freed_blocks_are_dropped),
    ("the worker is not told", ENGINE, "        if request_id in self._rank_of:\n            self._links[self._rank_of[request_id]].send(Cancel(request_id))\n", "        if request_id in self._rank_of:\n", lambda folder: TROUBLE.test_abort_leaves_nothing_wherever_it_comes(folder, 1, 64)),
    ("what waits for a lost worker waits on", ENGINE, "for request_id in list(self._rank_of):", "for request_id in ():", lambda folder: TROUBLE.test_a_lost_worker_loses_no_request(folder, 1)),
    ("a loss starts everything anew", ENGINE, "for request_id in list(self._rank_of):", "for request_id in list(self._engine._requests):", lambda folder: TROUBLE.test_a_lost_worker_loses_no_request(folder, 2)),
    ("holes are not looked for", ENGINE, "if first_missing is not None:", "if False:", lambda folder: lost_pages(folder, 1)),
    ("nothing is sent again", ENGINE, "self._grant({request_id: first_missing})", "pass", lambda folder: lost_pages(folder, 1)),
    ("all is sent again", ENGINE, "self._grant({request_id: first_missing})", "self._grant({request_id: 0})", FAILS.test_only_what_is_missing_is_sent_again),
    ("it is sent again for ever", ENGINE, "if self._num_resends[request_id] < MAX_RESENDS:", "if True:", lambda folder: lost_pages(folder, 10**6)),
    ("the worker of a prompt computed here keeps it", ENGINE, "            self._links[self._rank_of[request_id]].send(Cancel(request_id))\n            self._compute_here(request_id)", "            self._compute_here(request_id)", lambda folder: lost_pages(folder, 10**6)),
    ("pages are noted before they are written", PAGE, "                    unpack_layer(self._kv_cache, layer, buffer, targets)\n                    for written in filled:\n                        written.fill_(True)", "                    for written in filled:\n                        written.fill_(True)\n                    unpack_layer(self._kv_cache, layer, buffer, targets)", unwritten),
    ("a hit is missed", PAGE, "written[:, :first_block] = True", "pass", FAILS.test_a_known_prefix_is_not_missed),
    ("one layer is enough", PAGE, ".written.all(dim=0)", ".written.any(dim=0)", lambda folder: lost_pages(folder, 1)),
    ("blocks go where they came from", PAGE, "targets = torch.tensor([block_ids[row] for row in rows]", "targets = torch.tensor([row for row in rows]", same_bits),
    ("the scales stay behind", PAGE, "return [tensor[layer] for tensor in kv_cache.storage]", "return [tensor[layer] for tensor in kv_cache.storage[:2]]", same_bits),
    ("the worker leaves its blocks", WORKER, "for request_id in list(self._outgoing):", "for request_id in ():", orphans),
    ("a salt in the prompt stays at home", ENGINE, "salt = state.request.cache_salt", "salt = cache_salt", lambda folder: PAGES.test_tenants_share_no_pages_on_either_side(folder, "prompt")),
    ("back-pressure is met by spinning", WORKER, "0.0 if self._has_computed else", "0.0 if self._scheduler.has_runnable else", ROOM.test_a_worker_with_nothing_to_compute_sleeps),
    ("a policy's wait is slept through", WORKER, "min(timeout_s, self._engine.idle_s or timeout_s)", "timeout_s", ROOM.test_a_worker_whose_policy_waits_sleeps_until_then),
    ("the decode side spins", ENGINE, "0.0 if self._has_computed or", "0.0 if self._scheduler.has_runnable or", ROOM.test_a_decode_side_that_can_do_nothing_before_pages_come_sleeps),
    ("late sends count as hidden", CLOCK, "late_s=sum(max(0.0, end - max(start, end_s)) for start, end in self._sent)", "late_s=0.0", lambda folder: tests.test_what_a_transfer_hides()),
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

    # The two sides import each other's pages: a mutant of that module is seen through the worker, and through itself.
    KillTable.record(Mutant(name, f"twophase_features.parallel.{module}", old, new), with_module)
