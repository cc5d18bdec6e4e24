"""Planted scheduler bugs, and the tests that find them."""

from types import ModuleType

import pytest

import tests.scheduling.harness as harness_module
import twophase.scheduling.planner as planner_module
import twophase.scheduling.scheduler as scheduler_module
import twophase_features.admission as admission_module
from tests.mutation import KillTable, Mutant
from tests.scheduling import (
    test_policies,
    test_pressure,
    test_request_validation,
    test_shares,
    test_timelines,
    test_ways_of_admission,
)
from tests.scheduling import test_what_policies_are_told as TOLD
from tests.scheduling.harness import Harness
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.fair_shares import FairPolicy

SCHEDULER, PLANNER = "twophase.scheduling.scheduler", "twophase.scheduling.planner"
LIMITS, POLICY = "twophase.scheduling.limits", "twophase.scheduling.policy"
SEQUENCE, POLICIES = "twophase.scheduling.sequence", "twophase_features.policies."
ADMISSION, ROOM = "twophase_features.admission", "twophase_features.speculation.room"
THROUGH = {"decodes count against nothing": POLICIES + "chunked_prefill"}  # what the check is given instead
MUTATED = ("twophase.scheduling.", POLICIES, ADMISSION, ROOM)
USERS = (
    harness_module,
    scheduler_module,
    planner_module,
    admission_module,
    test_policies,
    test_shares,
    test_timelines,
    TOLD,
    test_ways_of_admission,
)


def running(*tests):
    """A check that runs these tests, or the timelines of these names, with the mutated module in the place of the real one."""

    def check(module: ModuleType) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if module.__name__.startswith(SCHEDULER):
                patch.setattr(Harness, "module", module)
            else:
                for user in USERS:
                    for name, value in list(vars(user).items()):
                        if getattr(value, "__module__", "").startswith(MUTATED) and hasattr(module, name):
                            patch.setattr(user, name, getattr(module, name))
            for test in tests:
                test_timelines.check_timeline(test) if isinstance(test, str) else test()

    return check


def worst_case():
    for prompt_len, max_tokens, n in ((4, 5, 1), (5, 6, 2), (5, 1, 3)):
        test_request_validation.check_worst_case(prompt_len, max_tokens, n)


def groups_of_layers():
    of_groups, whole = test_request_validation.GROUPS, test_request_validation.WHOLE
    for *case, options in ((30, 11, 1, 16, of_groups), (30, 11, 2, 25, of_groups), (30, 1, 1, 24, whole)):
        test_request_validation.check_worst_case(*case, **options)
    test_timelines.check_timeline("a newcomer leaves a block of each group of layers to those that grow")
    test_timelines.check_timeline("and waits where there is a block less")
    test_request_validation.test_a_prefill_leaves_the_others_what_they_reserved()
    test_pressure.test_groups_of_layers_with_windows_and_without(24)


def some_histories():
    for seed in range(4):
        test_pressure.play(seed, 20, disturbed=0.1)


def aborts():
    for num_steps in range(4):
        test_timelines.test_abort_ends_every_completion_wherever_it_stands(num_steps)


def histories_with_drafts():
    for seed in range(6):
        test_pressure.play(seed, 20, disturbed=0.1, max_drafts=5)


OFFLOADING = test_policies.TestOffloading()


def crowded_window():
    for order in ("prefills first", "decodes first"):
        test_timelines.test_drafts_take_no_block_that_a_prefill_reserved(order)


def short_steps():
    test_timelines.test_drafts_take_of_the_policys_tokens_what_is_left(ChunkedPrefillPolicy(max_tokens=8))


WAYS = test_ways_of_admission
ESTIMATE = WAYS.TestEstimate()


def fits():
    for case in WAYS.FITS:
        WAYS.check_fit(case)


def learns():
    ESTIMATE.test_with_short_answers_it_lets_in_more_than_the_worst_case_would("estimate")


ROTATING, FAIR = test_shares.TestRotating(), test_shares.TestFair()
ONE_FOR_SEVERAL = TOLD.TestOnePolicyForSeveralSchedulers()


def fair_shares():
    FAIR.test_as_long_as_two_wait_they_are_served_alike(1)


MUTANTS = [
    (ROOM, "drafts beyond the policy's tokens", "[], scheduler.planner.budget", "[], 64 - plan.num_tokens", short_steps),
    (PLANNER, "a policy's wish for short steps is forgotten", "self._max_tokens = min(self._max_tokens, max_tokens)", "pass", short_steps),
    (ROOM, "drafts beyond the budget", "            budget -= num_drafts\n", "", histories_with_drafts),
    (ROOM, "drafts beyond the blocks", "end = cache.room(table, num_tokens + num_drafts, cache.num_free_blocks)", "end = num_tokens + num_drafts", histories_with_drafts, crowded_window),
    (ROOM, "drafts beyond the last token", "sequence.max_num_tokens - num_tokens - 1)", "sequence.max_num_tokens - num_tokens)", test_timelines.test_drafts_go_no_further_than_the_sequence),
    (ROOM, "verifying chunks count as decodes of one token", "len(decodes) - num_verifying", "len(decodes)", histories_with_drafts),
    (ROOM, "drafts are not counted", "plan.num_tokens + sum(map(len, drafts.values()))", "plan.num_tokens", histories_with_drafts),
    (PLANNER, "a dropped step keeps its room for drafts", "            if sequence.open_table.num_tokens > len(sequence.token_ids):\n", "            if False:\n", histories_with_drafts),
    (PLANNER, "wrong drafts keep their room", "if len(sequence.token_ids) == num_computed < table.num_tokens - 1:", "if False:", histories_with_drafts),
    (SCHEDULER, "wrong drafts count as computed", "chunk.start + len(chunk.token_ids) - chunk.num_drafts + num_accepted)", "chunk.start + len(chunk.token_ids))", histories_with_drafts),
    (SCHEDULER, "an end inside a run is overlooked", "return tokens[: next(ends, room)]", "return tokens[:room]", histories_with_drafts),
    (SCHEDULER, "a run's tokens are lost but the last", "        sequence.token_ids += [token.token_id for token in tokens[:num_accepted]]\n", "", histories_with_drafts),
    (PLANNER, "the watermark is ignored", "num_headroom - num_watermark\n", "num_headroom\n", test_policies.TestAdmission().test_without_a_reserve_a_crowded_pool_thrashes),
    (PLANNER, "a sequence may be planned twice", "if sequence in self._planned:", "if False:", lambda: test_policies.test_a_policy_that_makes_no_sense_is_told_so_and_nothing_is_lost(*test_policies.PLANNED_TWICE)),
    (POLICY, "decodes count against nothing", "step.limit(max_tokens)", "step.limit(max_tokens + sum(sequence.is_decoding for sequence in step.running))", "chunked keeps every step short"),
    (POLICIES + "whole_prompts", "the stall is unbounded", "step.num_stalled_steps < self.max_stalled_steps", "True", test_policies.test_prefill_first_starves_decodes_as_long_as_prompts_come_unless_bounded),
    (PLANNER, "stalled steps are not counted", "self.num_stalled_steps + 1 if stalls else 0", "0", test_policies.test_prefill_first_starves_decodes_as_long_as_prompts_come_unless_bounded),
    (POLICIES + "request_level", "a batch takes newcomers", "        if step.running:\n            run_batch(step)\n        else:\n            start_batch", "        run_batch(step)\n        if True:\n            start_batch", "static admits no request until the last is done"),
    (POLICIES + "request_level", "the time-out is forgotten", "if is_full or step.now_s >= starts_s:", "if is_full:", test_policies.test_dynamic_waits_for_company_but_not_for_ever),
    (POLICIES + "deadlines", "deadlines ignore arrival", "sequence.request.arrival_s + slo_s", "slo_s", "deadlines go by the clock, and requests without one come last"),
    (PLANNER, "a partial prefill samples", "num_samples = sequence.num_completions if end == len(sequence.token_ids) else 0", "num_samples = sequence.num_completions", "decodes go first, and a prompt fills the rest of the budget"),
    (PLANNER, "decodes not first", "chunks=(*self._decodes, *self._prefills)", "chunks=(*self._prefills, *self._decodes)", "decodes go first, and a prompt fills the rest of the budget"),
    (PLANNER, "budget off by one", "self._max_tokens = self.config.max_num_batched_tokens", "self._max_tokens = self.config.max_num_batched_tokens + 1", "decodes go first, and a prompt fills the rest of the budget"),
    (SCHEDULER, "end of text missed on the first token", "if token_id in sequence.stop_token_ids:", "if token_id in sequence.stop_token_ids and len(sequence.token_ids) > sequence.num_prompt_tokens + 1:", test_timelines.test_end_of_text_as_the_very_first_token),
    (SCHEDULER, "one token too few", "len(sequence.token_ids) >= sequence.max_num_tokens", "len(sequence.token_ids) + 1 >= sequence.max_num_tokens", test_timelines.test_every_way_to_stop),
    (SCHEDULER, "one token too many", "len(sequence.token_ids) >= sequence.max_num_tokens", "len(sequence.token_ids) > sequence.max_num_tokens", test_timelines.test_every_way_to_stop),
    (SCHEDULER, "the stop token is lost", "            self._end(sequence, reason)\n        return", "            self._end(sequence, reason)\n            run = (SampledToken(-1),)\n        return", test_timelines.test_every_way_to_stop),
    (SCHEDULER, "an end of text is reported as a stop id", '"stop", None if is_eos else token_id', '"stop", token_id', test_timelines.test_every_way_to_stop),
    (PLANNER, "blocks leaked on abort", "        self.cache.close(sequence.table)\n", "        pass\n", aborts),
    (SCHEDULER, "abort ends one completion only", "seq_ids = list(self._seq_ids_of.get(request_id, ()))", "seq_ids = list(self._seq_ids_of.get(request_id, ()))[:1]", aborts),
    (PLANNER, "published before computed", "        self.cache.reserve(table, num_tokens)\n", "        self.cache.reserve(table, num_tokens)\n        self.cache.publish(table, sequence.token_ids, table.num_tokens)\n", "equal prompts of one step share nothing"),
    (PLANNER, "never published", "self.cache.publish(table, sequence.token_ids, num_computed)", "pass", "a shared prefix is computed once, and not across salts"),
    (PLANNER, "hits are recomputed", "        sequence.num_computed_tokens = table.num_cached_tokens\n", "", "a shared prefix is computed once, and not across salts"),
    (PLANNER, "salts ignored", "sequence.lookup_ids, sequence.request.cache_salt,", 'sequence.lookup_ids, "",', "a shared prefix is computed once, and not across salts"),
    (PLANNER, "output lost on preemption", "victim.num_preemptions += 1", "victim.num_preemptions += 1; del victim.token_ids[victim.num_prompt_tokens :]", "the latest is preempted, and comes back before later ones"),
    (PLANNER, "a preempted sequence thinks its pages are there", "sequence.table, sequence.num_computed_tokens = None, 0", "sequence.table = None", "the latest is preempted, and comes back before later ones", some_histories),
    (PLANNER, "a preempted sequence is called running", "        victim.status = SequenceStatus.PREEMPTED\n", "", "the latest is preempted, and comes back before later ones"),
    (PLANNER, "the best is preempted", "for each in reversed(self._running) if", "for each in self._running if", "the earliest takes the blocks of the latest"),
    (PLANNER, "running ones are not kept in rank order", "bisect.insort(self._running, sequence, key=_ORDER)", "self._running.append(sequence)", "the lowest priority is preempted, even if it came first"),
    (PLANNER, "a preempted request is counted again", "cache_salt, is_first_time, sequence.block_keys", "cache_salt, True, sequence.block_keys", test_timelines.test_statistics_count_a_preempted_request_once),
    (PLANNER, "loaded blocks are not told of", "self._loaded += self.cache.load(table, sequence.token_ids)", "self.cache.load(table, sequence.token_ids)", OFFLOADING.test_another_request_finds_what_has_left_the_pool),
    (PLANNER, "copies forgotten", "            self._copies += copies\n", "            pass\n", test_timelines.test_completions_share_the_prompts_sample_and_copy_its_last_block),
    (SCHEDULER, "a plan counts twice", "        self._plan = None\n        self.planner.commit()\n", "        self.planner.commit()\n", test_timelines.test_update_wants_the_latest_plan_and_its_samples),
    (SCHEDULER, "samples are not checked", "if not chunk.num_samples <= len(tokens) <= most:", "if len(tokens) > most:", test_timelines.test_update_wants_the_latest_plan_and_its_samples),
    (PLANNER, "one place for n completions", "if sequence.num_completions > self.num_free_seqs or", "if self.num_free_seqs < 1 or", "places are kept for all completions that are admitted together"),
    (PLANNER, "running forks take one place", "sum(each.num_completions for each in self._running)", "len(self._running)", "places are kept for completions not forked yet"),
    (SCHEDULER, "forks draw the parent's token", "for completion, token in zip(completions, tokens, strict=True)", "for completion, token in zip(completions, tokens[:1] * len(completions), strict=True)", "completions fork when the prompt is done"),
    (LIMITS, "room to grow in one group", "sequence.num_completions * cache.num_blocks_at_most(1) if", "sequence.num_completions if", groups_of_layers),
    (PLANNER, "a prefill takes what was reserved for others", "end = self.cache.room(table, end, max(0, self._num_spare_blocks(sequence, table)))", "pass", groups_of_layers),
    (PLANNER, "no room to grow kept", "num_free_blocks - num_headroom - num_watermark", "num_free_blocks - num_watermark", "a newcomer leaves each running sequence room to grow"),
    (LIMITS, "room to grow kept for nobody", "may_grow = sequence.num_completions > 1 or sequence.max_num_tokens - 1 > num_slots", "may_grow = True", "requests of one token need no room to grow"),
    (POLICIES + "round_robin", "turns go by rank", "lambda candidate: self.turns.get(candidate[0].seq_id, 0)", "lambda candidate: candidate[0].rank", "three prompts take turns of two a step"),
    (POLICIES + "round_robin", "newcomers take turns by age", "is_closed = not step.admit(next(by_rank), self.chunk_tokens)", "is_closed = not step.admit(sequence, self.chunk_tokens)", "newcomers take their turns by rank"),
    (POLICIES + "round_robin", "the small pass over the large", "            elif not is_closed:\n", "            else:\n", "by turns, a prompt that does not fit is not passed over"),
    (PLANNER, "a turn is no whole prompt", "return self._plan_chunk(sequence, max_tokens if may_split else None)", "return self._plan_chunk(sequence, max_tokens)", "without chunks a turn is a prompt"),
    (POLICIES + "round_robin", "newcomers come first", "        if sequence.num_preemptions == 0:  # a preempted sequence keeps its turn\n            self.turns[sequence.seq_id] = next(self.clock)\n", "        pass\n", "a newcomer goes behind those that wait for their turn"),
    (POLICIES + "round_robin", "a preempted prompt goes behind the others", "if sequence.num_preemptions == 0:", "if True:", ROTATING.test_what_moves_a_sequence_behind_the_others),
    (POLICIES + "round_robin", "a decode is a turn", "        if num_prefill_tokens:\n", "        if True:\n", ROTATING.test_what_moves_a_sequence_behind_the_others),
    (POLICIES + "round_robin", "turns are kept when their sequences are gone", "self.turns.pop(sequence.seq_id, None)", "pass", ROTATING.test_turns_are_forgotten_with_their_sequences),
    (SCHEDULER, "two schedulers share a policy's counters", "(policy or PriorityPolicy()).fresh())", "policy or PriorityPolicy())", lambda: ONE_FOR_SEVERAL.test_each_scheduler_has_counters_of_its_own(FairPolicy())),
    (SCHEDULER, "a decode is told as a prefill", "0 if sequence.is_decoding else len(chunk.token_ids)", "len(chunk.token_ids)", TOLD.test_a_prompt_in_chunks_and_its_completions),
    (SCHEDULER, "an error of a policy loses the rest of a step", "        self._ended.append(sequence)\n", "        self.policy.note_ended(sequence)\n", TOLD.test_an_error_at_one_completions_end_leaves_the_others_whole),
    (SCHEDULER, "an end is told of no sequence that was ended from outside", "        self._end(sequence, reason)\n        self._tell_ends()\n", "        self._end(sequence, reason)\n", lambda: TOLD.test_a_sequence_that_is_ended_while_it_waits("aborted")),
    (PLANNER, "a preempted sequence is not told", "        self.policy.note_waiting(victim)\n", "", TOLD.test_a_preempted_sequence_waits_again_and_its_tokens_are_prefilled_again),
    (POLICIES + "fair_shares", "the tenant served most is next", "tenant = min(of_tenant, key", "tenant = max(of_tenant, key", fair_shares),
    (POLICIES + "fair_shares", "a tenant's next one passes over another's", "            if not step.admit(sequence):\n                return\n", "            if not step.admit(sequence):\n                continue\n", "a tenant's request that does not fit is not passed over"),
    (POLICIES + "fair_shares", "idleness is saved up", "counters[tenant] = max(counters[tenant], least)", "pass", FAIR.test_idleness_is_not_saved_up),
    (POLICIES + "fair_shares", "a counter falls", "max(counters[tenant], least)", "least", FAIR.test_a_counter_never_falls),
    (POLICIES + "fair_shares", "nobody is the measure of an empty queue", "default=counters[self.waited_last[0]]", "default=0", FAIR.test_after_an_empty_queue_the_last_who_waited_is_the_measure),
    (POLICIES + "fair_shares", "what was found is charged", "sequence.num_prompt_tokens - sequence.num_cached_tokens", "sequence.num_prompt_tokens", FAIR.test_only_what_is_computed_is_charged_and_only_once),
    (POLICIES + "fair_shares", "preempted prompts are charged again", "            if sequence.num_preemptions == 0:  # a", "            if True:  # a", FAIR.test_only_what_is_computed_is_charged_and_only_once),
    (POLICIES + "fair_shares", "output is free", "self.counters[sequence.request.tenant] += OUTPUT_WEIGHT * num_output_tokens", "pass", FAIR.test_only_what_is_computed_is_charged_and_only_once),
    (POLICIES + "fair_shares", "whoever waited once waits for ever", "                del self.waiting[tenant]\n", "                pass\n", FAIR.test_the_queue_of_tenants_follows_the_queue),
    (ADMISSION, "the worst case is one token short", "table, sequence.max_num_tokens - 1)", "table, sequence.max_num_tokens - 2)", fits),
    (ADMISSION, "the worst case counts the token that is never written", "table, sequence.max_num_tokens - 1)", "table, sequence.max_num_tokens)", fits),
    (ADMISSION, "completions that will part count as one", "return sequence.num_completions * cache.num_blocks_at_most(num_beyond) if", "return cache.num_blocks_at_most(num_beyond) if", fits),
    (ADMISSION, "the block that completions share is not copied", "- num_now // cache.block_size", "- -(-num_now // cache.block_size)", fits),
    (ADMISSION, "what is taken at once is reserved besides", "else num_needed - cache.num_blocks_needed(table, num_now)", "else num_needed", fits),
    (PLANNER, "the newcomer's own growth is left out", "for each in tables.items())", "for each in tables.items() if each[0] is not sequence)", fits),
    (ADMISSION, "the estimate starts from the first end", "before = sequence.max_num_tokens - num_prompt if", "before = num_tokens if", ESTIMATE.test_the_average_by_hand),
    (ADMISSION, "the estimate never forgets", "(1 - self.DECAY) * (num_tokens - num_prompt)", "(1 - self.DECAY) * before", learns),
    (ADMISSION, "more is expected than is allowed", "min(max_tokens, math.ceil(self.mean_length))", "math.ceil(self.mean_length)", ESTIMATE.test_the_average_by_hand),
    (ADMISSION, "one that outlives the estimate is left nothing", "return max(super().headroom(sequence, table), num_blocks_up_to(self.cache, sequence, table, num_tokens))", "return num_blocks_up_to(self.cache, sequence, table, num_tokens)", ESTIMATE.test_one_that_outlives_the_estimate_is_left_a_block),
    (SCHEDULER, "aborted ones teach lengths", 'if reason in ("stop", "length"):', "if True:", ESTIMATE.test_it_learns_from_what_ends_by_itself_and_from_nothing_else),
    (SCHEDULER, "what the engine ends teaches nothing", 'if reason in ("stop", "length"):', "if False:", ESTIMATE.test_it_learns_from_what_ends_by_itself_and_from_nothing_else),
    (PLANNER, "one alone must keep room to grow", "        if len(tables) == 1:\n            return self.cache.num_free_blocks\n", "", worst_case),
    (PLANNER, "prefills are always chunked", "may_split = is_too_long or (self.config.enable_chunked_prefill and not whole)", "may_split = True", "without chunks a long head holds up the queue"),
    (PLANNER, "what outgrew the budget is stuck", "may_split = is_too_long or (", "may_split = (", "without chunks, a sequence that outgrew the budget comes back in two steps"),
    (LIMITS, "a prompt may fill the context", "num_prompt_tokens >= config", "num_prompt_tokens > config", lambda: test_request_validation.test_refusals_state_rule_and_numbers({"prompt": 20}, {"max_model_len": 20}, "at most 19") ),
    (LIMITS, "the last token is given a slot", "max_model_len) - 1\n", "max_model_len)\n", worst_case),
    (LIMITS, "forks are not counted", "cache.num_blocks_at_most(num_slots, num_prompt_tokens, n)", "cache.num_blocks_at_most(num_slots, num_prompt_tokens)", worst_case),
    (POLICY, "high priorities wait", "(request.priority, sequence", "(-request.priority, sequence", "the lowest priority is preempted, even if it came first"),
    (POLICY, "last come first served", "(request.priority, sequence.", "(request.priority, -sequence.", test_timelines.test_first_come_first_served_without_starvation),
    (PLANNER, "aborted ones come back", "            self._waiting.remove(sequence)\n            return\n", "            return\n", aborts, some_histories),
    (SEQUENCE, "forks share one list of tokens", "token_ids = list(self.token_ids)", "token_ids = self.token_ids", some_histories),
    (SEQUENCE, "the context is no limit", "min(num_prompt_tokens + params.max_tokens, max_model_len)", "num_prompt_tokens + params.max_tokens", some_histories),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("row", MUTANTS, ids=[row[1] for row in MUTANTS])
def test_mutant_is_killed(row):
    module, name, old, new, *tests = row
    KillTable.record(Mutant(name, module, old, new, THROUGH.get(name)), running(*tests))
