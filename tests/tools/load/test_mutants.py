"""Planted bugs in what measures serving, and the tests that find them."""

from types import ModuleType

import pytest

from tests.mutation import KillTable, Mutant
from tests.tools.bench import test_serve
from tests.tools.load import (
    test_lanes,
    test_latency,
    test_records,
    test_report,
    test_workloads,
)


def found_by(name: str, module_name: str, old: str, new: str, in_tests: ModuleType, *tests):
    """A mutant of `module_name`, which the test module `in_tests` knows under its last name."""
    alias = "serve_module" if in_tests is test_serve else module_name.rpartition(".")[2]

    def check(module: ModuleType) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(in_tests, alias, module)
            for test in tests:
                test()

    return pytest.param(Mutant(name, module_name, old, new), check, id=name)


def in_records(name, old, new, *tests):
    return found_by(name, "twophase_tools.load.records", old, new, test_records, *tests)


def in_latency(name, old, new, *tests):
    return found_by(name, "twophase_tools.load.latency", old, new, test_latency, *tests)


def in_queue(name, old, new, *tests):
    return found_by(name, "twophase_tools.load.report", old, new, test_report, *tests)


def in_steps(name, old, new, *tests):
    return found_by(name, "twophase_tools.load.steps", old, new, test_report, *tests)


def in_lanes(name, old, new, *tests):
    return found_by(name, "twophase_tools.load.lanes", old, new, test_lanes, *tests)


def in_workloads(name, old, new, *tests):
    return found_by(name, "twophase_tools.load.workloads", old, new, test_workloads, *tests)


def in_serve(name, old, new, *tests):
    return found_by(name, "twophase_tools.bench.serve", old, new, test_serve, *tests)


def gaps():
    test_workloads.test_gaps_have_the_mean_and_the_variation_asked_for(3)


MUTANTS = [
    in_records(
        "TTFT from scheduling",
        "self.token_times_s[0] - self.arrival_s",
        "self.token_times_s[0] - (self.first_scheduled_s or 0)",
        test_records.test_the_worked_example,
    ),
    in_records("TPOT over all tokens", "/ (len(times) - 1)", "/ len(times)", test_records.test_the_worked_example),
    in_records(
        "TPOT of one token is 0",
        "if len(times) > 1 else None",
        "if len(times) > 1 else 0.0",
        test_records.test_what_did_not_happen_is_none_and_never_zero,
    ),
    in_records(
        "TTFT of none is 0",
        "if self.token_times_s else None",
        "if self.token_times_s else 0",
        test_records.test_what_did_not_happen_is_none_and_never_zero,
    ),
    in_records(
        "siblings forgotten",
        "len(self.token_times_s) + self.num_sibling_tokens",
        "len(self.token_times_s)",
        test_records.test_an_engines_output_becomes_a_record,
    ),
    in_records(
        "an error passes as a stop",
        "(bad or reasons)[0]",
        "reasons[0]",
        lambda: test_records.test_one_bad_completion_makes_the_request_bad(("stop", "error"), "error"),
    ),
    in_records("the report's promise first", "self.slo or slo", "slo or self.slo", test_records.test_keeping_a_promise),
    in_latency("nearest rank", "(index - below) *", "round(index - below) *", test_latency.test_percentiles_are_numpys),
    in_latency(
        "n instead of n - 1",
        "(len(in_order) - 1) * percent",
        "len(in_order) * percent",
        test_latency.test_the_worked_example,
    ),
    in_latency(
        "not sorted", "in_order = sorted(values)", "in_order = list(values)", test_latency.test_the_worked_example
    ),
    in_latency(
        "none counts as 0",
        "if value is not None)\n        if not there",
        "if value is not None or True)\n        if not there",
        test_latency.test_a_distribution_in_a_line,
    ),
    in_latency(
        "aborts make latency short",
        " for record in records if record.is_completed)",
        " for record in records)",
        test_latency.test_latencies_by_hand,
    ),
    in_latency(
        "goodput of all",
        "cls(len(met), sum(met), rate(sum(met), window_s))",
        "cls(len(met), sum(met), rate(len(met), window_s))",
        test_latency.test_goodput_by_hand,
    ),
    in_queue(
        "aborted ones wait for ever",
        "record.finished_s if record.first_scheduled_s is None else",
        "None if record.first_scheduled_s is None else",
        test_report.test_the_queue_by_hand,
    ),
    in_queue(
        "who waits still is forgotten",
        "min(_left_queue_s(record), end_s)",
        "_left_queue_s(record) if _left_queue_s(record) < end_s else record.arrival_s",
        test_report.test_the_queue_of_those_who_wait_still_ends_with_the_window,
    ),
    in_steps("plain means", "if total_s > 0:", "if total_s < 0:", test_report.test_steps_by_hand),
    in_steps(
        "a state holds before the step", "[*ends, *ends[-1:]]", "[*ends[:1], *ends]", test_report.test_steps_by_hand
    ),
    in_steps(
        "every prefill is recomputed",
        "max(0, min(before, start + count) - start)",
        "count",
        test_report.test_recomputed_tokens_are_positions_seen_before,
    ),
    in_steps(
        "forks share positions",
        "reached.get((request_id, index), 0)",
        "max((v for (r, _), v in reached.items() if r == request_id), default=0)",
        test_report.test_recomputed_tokens_are_positions_seen_before,
    ),
    in_steps(
        "fragmentation of the pool",
        "(step.blocks_in_use * block_size)",
        "(num_blocks(step) * block_size)",
        test_report.test_steps_by_hand,
    ),
    in_lanes("pauses unseen", "event.step.step > last.step.step + 1", "False", test_lanes.test_every_lane_by_hand),
    in_lanes(
        "a decode is a prefill",
        "position < step.num_decodes",
        "position < step.num_decodes - 1",
        test_lanes.test_every_lane_by_hand,
    ),
    in_lanes(
        "preemptions unseen", 'state, since_s = "preempted", start_s', "continue", test_lanes.test_every_lane_by_hand
    ),
    in_lanes(
        "forks wait in the queue",
        "record.arrival_s if index == 0 else None",
        "record.arrival_s",
        test_lanes.test_completions_that_fork_have_lanes_of_their_own,
    ),
    in_lanes(
        "waiting ends unseen",
        "if since_s is not None and end_s is not None:",
        "if False:",
        test_lanes.test_what_has_not_ended_lasts_until_the_diary_does,
    ),
    in_lanes(
        "a late diary stretches the wait",
        "scheduled_s < diary.start_s)",
        "False)",
        test_lanes.test_a_diary_that_begins_late_or_is_empty,
    ),
    found_by(
        "a gamma of the wrong scale",
        "twophase_tools.load.arrivals",
        "self.cv**2 / self.rate_per_s",
        "1 / self.rate_per_s",
        test_workloads,
        gaps,
    ),
    found_by(
        "cv is the shape",
        "twophase_tools.load.arrivals",
        "1 / self.cv**2, self.cv**2 / self.rate_per_s",
        "1 / self.cv, self.cv / self.rate_per_s",
        test_workloads,
        gaps,
    ),
    found_by(
        "the median is the mean",
        "twophase_tools.load.lengths",
        "math.log(self.median), self.sigma)",
        "math.log(self.median) - self.sigma**2 / 2, self.sigma)",
        test_workloads,
        test_workloads.test_lengths,
    ),
    found_by(
        "the upper length is left out",
        "twophase_tools.load.lengths",
        "rng.randint(self.low, self.high)",
        "rng.randrange(self.low, self.high)",
        test_workloads,
        test_workloads.test_lengths,
    ),
    in_workloads(
        "one stream for all",
        '(random.Random(f"{self.seed} {stream}") for stream in streams)',
        "[random.Random(str(self.seed))] * 4",
        test_workloads.test_other_arrivals_bring_the_same_requests,
    ),
    in_workloads(
        "benchmark ids and lengths in another order",
        "rng.randint(0, BENCHMARK_VOCAB_SIZE)",
        "rng.randrange(BENCHMARK_VOCAB_SIZE)",
        test_workloads.test_the_common_benchmark,
    ),
    in_workloads(
        "every request the same prompt",
        'f"{seed} request {request.request_id}"',
        'f"{seed} request"',
        test_workloads.test_token_ids_depend_on_seed_and_request_alone,
    ),
    in_serve(
        "a closed loop",
        "coming[0][0].arrival_s <= now_s if",
        "coming[0][0].arrival_s <= now_s and not engine.has_unfinished_requests() if",
        test_serve.test_arrivals_do_not_wait_for_completions,
    ),
    in_serve(
        "latency from the handing over",
        "due_s = self._start_s + request.arrival_s",
        "due_s = self._clock.now_s()",
        test_serve.test_arrivals_do_not_wait_for_completions,
    ),
    in_serve(
        "busy waiting",
        "may_sleep_s = MAX_SLEEP_S",
        "may_sleep_s = 0.001",
        test_serve.test_an_idle_engine_is_left_alone_until_the_next_arrival,
    ),
    in_serve(
        "it sleeps through an arrival",
        "min([may_sleep_s, *(time_s - run.elapsed_s for time_s in next_s if time_s is not None)])",
        "may_sleep_s",
        test_serve.test_an_idle_engine_is_left_alone_until_the_next_arrival,
    ),
    in_serve(
        "the limit is forgotten while busy",
        "now_s >= duration_limit_s:",
        "now_s >= duration_limit_s and not engine.has_unfinished_requests():",
        test_serve.test_the_duration_limit_aborts_what_is_unfinished_and_forgets_what_has_not_come,
    ),
    in_serve(
        "aborted ones are not reported",
        "            if output is not None:\n",
        "            if False:\n",
        test_serve.test_the_duration_limit_aborts_what_is_unfinished_and_forgets_what_has_not_come,
    ),
]


@pytest.mark.mutants
@pytest.mark.parametrize(("mutant", "check"), MUTANTS)
def test_mutant_is_killed(mutant, check):
    KillTable.record(mutant, check)
