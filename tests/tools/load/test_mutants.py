"""Planted bugs in what loads a server and measures serving, and the tests that find them."""

from types import ModuleType

import pytest

from tests.mutation import KillTable, Mutant
from tests.tools.bench import test_http_client as http
from tests.tools.bench import test_serve as serving
from tests.tools.load import test_lanes as lanes
from tests.tools.load import test_latency as latency
from tests.tools.load import test_records as records
from tests.tools.load import test_report as report
from tests.tools.load import test_workloads as workloads

LOAD, SERVE, HTTP = "twophase_tools.load.", "twophase_tools.bench.serve", "twophase_tools.bench.http_client"


def one_bad():
    records.test_one_bad_completion_makes_the_request_bad(("stop", "error"), "error")


def gaps():
    workloads.test_gaps_have_the_mean_and_the_variation_asked_for(3)


# By module and the module of its tests: what is wrong, what is replaced by what, and the test that finds it.
MUTANTS = {
    (LOAD + "records", records): [
        ("TTFT from scheduling", "self.token_times_s[0] - self.arrival_s", "self.token_times_s[0] - (self.first_scheduled_s or 0)", records.test_the_worked_example),
        ("TPOT over all tokens", "/ (len(times) - 1)", "/ len(times)", records.test_the_worked_example),
        ("TPOT of one token is 0", "if len(times) > 1 else None", "if len(times) > 1 else 0.0", records.test_what_did_not_happen_is_none_and_never_zero),
        ("TTFT of none is 0", "if self.token_times_s else None", "if self.token_times_s else 0", records.test_what_did_not_happen_is_none_and_never_zero),
        ("siblings forgotten", "len(self.token_times_s) + self.num_sibling_tokens", "len(self.token_times_s)", records.test_an_engines_output_becomes_a_record),
        ("an error passes as a stop", "(bad or reasons)[0]", "reasons[0]", one_bad),
    ],
    (LOAD + "latency", latency): [
        ("none counts as 0", "[value for value in values if value is not None]", "[value or 0 for value in values]", latency.test_a_distribution_in_a_line),
        ("percentiles change places", "p50, p90, p95, p99 = np", "p50, p95, p90, p99 = np", latency.test_a_distribution_in_a_line),
        ("aborts make latency short", " for record in records if record.is_completed)", " for record in records)", latency.test_latencies_by_hand),
        ("goodput of all", "cls(len(met), sum(met), rate(sum(met), window_s))", "cls(len(met), sum(met), rate(len(met), window_s))", latency.test_goodput_by_hand),
    ],
    (LOAD + "steps", report): [
        ("plain means", "if sum(held_s) > 0:", "if sum(held_s) < 0:", report.test_steps_by_hand),
        ("a state holds before the step", "zip(steps, held_s, strict=False)", "zip(steps[1:], held_s, strict=False)", report.test_steps_by_hand),
        ("every prefill is recomputed", "max(0, min(before, start + count) - start)", "count", report.test_recomputed_tokens_are_positions_seen_before),
        ("forks share positions", "reached.get((request_id, index), 0)", "max((v for (r, _), v in reached.items() if r == request_id), default=0)", report.test_recomputed_tokens_are_positions_seen_before),
    ],
    (LOAD + "lanes", lanes): [
        ("pauses unseen", "event.step.step > last.step.step + 1", "False", lanes.test_every_lane_by_hand),
        ("a decode is a prefill", "position < step.num_decodes", "position < step.num_decodes - 1", lanes.test_every_lane_by_hand),
        ("preemptions unseen", 'state, since_s = "preempted", start_s', "continue", lanes.test_every_lane_by_hand),
        ("forks wait in the queue", "record.arrival_s if index == 0 else None", "record.arrival_s", lanes.test_completions_that_fork_have_lanes_of_their_own),
        ("waiting ends unseen", "if since_s is not None and end_s is not None:", "if False:", lanes.test_what_has_not_ended_lasts_until_the_diary_does),
        ("a late diary stretches the wait", "scheduled_s < window[0])", "False)", lanes.test_a_diary_that_begins_late_or_is_empty),
    ],
    (LOAD + "arrivals", workloads): [
        ("a gamma of the wrong scale", "self.cv**2 / self.rate_per_s", "1 / self.rate_per_s", gaps),
        ("cv is the shape", "1 / self.cv**2, self.cv**2 / self.rate_per_s", "1 / self.cv, self.cv / self.rate_per_s", gaps),
    ],
    (LOAD + "lengths", workloads): [
        ("the median is the mean", "math.log(self.median), self.sigma)", "math.log(self.median) - self.sigma**2 / 2, self.sigma)", workloads.test_lengths),
        ("the upper length is left out", "rng.randint(self.low, self.high)", "rng.randrange(self.low, self.high)", workloads.test_lengths),
    ],
    (LOAD + "workloads", workloads): [
        ("one stream for all", '(random.Random(f"{self.seed} {stream}") for stream in streams)', "[random.Random(str(self.seed))] * 4", workloads.test_other_arrivals_bring_the_same_requests),
        ("benchmark ids and lengths in another order", "rng.randint(0, BENCHMARK_VOCAB_SIZE)", "rng.randrange(BENCHMARK_VOCAB_SIZE)", workloads.test_the_common_benchmark),
        ("every request the same prompt", 'f"{seed} request {request.request_id}"', 'f"{seed} request"', workloads.test_token_ids_depend_on_seed_and_request_alone),
    ],
    (SERVE, serving): [
        ("a closed loop", "coming[0][0].arrival_s <= elapsed_s if", "coming[0][0].arrival_s <= elapsed_s and not engine.has_unfinished_requests() if", serving.test_arrivals_do_not_wait_for_completions),
        ("latency from the handing over", "(request.arrival_s if concurrency is None else log.elapsed_s)", "log.elapsed_s", serving.test_arrivals_do_not_wait_for_completions),
        ("busy waiting", "float | int = MAX_SLEEP_S", "float | int = 0.001", serving.test_an_idle_engine_is_left_alone_until_the_next_arrival),
        ("it sleeps through an arrival", "min([may_sleep_s, *(time_s - log.elapsed_s for time_s in next_s if time_s is not None)])", "may_sleep_s", serving.test_an_idle_engine_is_left_alone_until_the_next_arrival),
        ("the limit is forgotten while busy", "elapsed_s >= duration_limit_s:", "elapsed_s >= duration_limit_s and not engine.has_unfinished_requests():", serving.test_the_duration_limit_aborts_what_is_unfinished_and_forgets_what_has_not_come),
        ("aborted ones are not reported", "        if aborted is not None:\n", "        if False:\n", serving.test_the_duration_limit_aborts_what_is_unfinished_and_forgets_what_has_not_come),
    ],
    (HTTP, http): [
        ("sent when it is convenient", "self._has_ended.wait(seconds)", "time.sleep(seconds)", http.test_in_a_closed_loop_a_client_sends_when_its_last_request_has_ended),
        ("a chunk is a token", "* (progress.num_tokens - len(asked.times_s))", "", http.test_several_tokens_may_come_at_once),
        ("a refusal is an abort", '"error" if self.error is not None else', "", http.test_a_refusal_stops_nobody),
        ("an abort is an end", 'or "abort"', 'or "length"', http.test_the_duration_limit_aborts_what_is_unfinished),
        ("late is when it was sent", "_Asked(request_id, prompt[\"prompt_token_ids\"], arrival_s,", "_Asked(request_id, prompt[\"prompt_token_ids\"], time.monotonic(),", http.test_requests_come_by_the_clock_and_their_times_are_noted),
    ],
}  # fmt: skip
CASES = [
    pytest.param(Mutant(name, module, old, new), tests, test, id=name)
    for (module, tests), mutants in MUTANTS.items()
    for name, old, new, test in mutants
]


@pytest.mark.mutants
@pytest.mark.parametrize(("mutant", "tests", "test"), CASES)
def test_mutant_is_killed(mutant: Mutant, tests: ModuleType, test) -> None:
    """The test module knows the mutated module under its last name; `serve` is also a function."""
    alias = "serve_module" if mutant.module == SERVE else mutant.module.rpartition(".")[2]

    def check(module: ModuleType) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tests, alias, module)
            test()

    KillTable.record(mutant, check)
