"""What sections 4 to 7 of lab 8 are made of: a service that loses nothing, samples that count right, bytes and seconds that add up."""

import itertools
from dataclasses import replace

import pytest

from twophase_features.policies.whole_prompts import PrefillFirstPolicy
from twophase_labs.operations import costs, dashboards, incidents, overload, unseen
from twophase_labs.operations.incidents import HEALTHY, HEALTHY_APART, Hour, over
from twophase_labs.operations.service import MAX_ATTEMPTS, ON_H100, RETRY_S, Setting, Traffic, serve

SHORT = Traffic(length_s=20.0)
SETTINGS = {
    "together": Setting(),
    "apart": Setting(link_bytes_per_s=1e9, link_jitter=5.0),
    "whole prompts": Setting(policy=PrefillFirstPolicy()),
    "a small pool": Setting(num_blocks=600),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_request_is_answered_once_and_in_full(name):
    run = serve(SETTINGS[name], SHORT, seed=3)
    assert sorted(record.request_id for record in run.records) == sorted(run.asked)
    for record in run.records:
        asked = run.asked[record.request_id]
        assert len(record.token_times_s) == asked.max_tokens == asked.num_wanted
        assert record.num_prompt_tokens == asked.num_prompt_tokens


def test_the_same_seed_gives_the_same_run_and_another_setting_the_same_requests():
    once, again = (serve(Setting(), SHORT, seed=5) for _ in range(2))
    assert once == again
    other = serve(SETTINGS["whole prompts"], SHORT, seed=5)
    assert sorted(record.arrival_s for record in other.records) == sorted(record.arrival_s for record in once.records)


def test_clients_ask_again_after_each_invalid_answer_and_not_without_end():
    run = serve(Setting(), replace(SHORT, invalid=0.8), seed=2)
    records = {record.request_id: record for record in run.records}
    attempts = [name for name, asked in run.asked.items() if asked.attempt > 1]
    given_up = [name for name in run.invalid if run.asked[name].attempt == MAX_ATTEMPTS]
    assert len(attempts) == len(run.invalid) - len(given_up) > 10
    ends = sorted(records[name].finished_s for name in run.invalid)
    for name in attempts:
        assert any(records[name].arrival_s == pytest.approx(end + RETRY_S) for end in ends)


def test_samples_count_what_the_records_tell():
    run = HEALTHY.run(4)
    samples = HEALTHY.window(4)
    assert [b["time_s"] - a["time_s"] for a, b in itertools.pairwise(samples)] == [5.0] * (len(samples) - 1)
    totals = [name for name in samples[0] if name.endswith("_total")]
    assert all(a[name] <= b[name] for a, b in itertools.pairwise(samples) for name in totals)
    start_s, end_s = samples[0]["time_s"], samples[-1]["time_s"]
    ended = [record for record in run.records if start_s < record.finished_s <= end_s]
    assert over(samples, "answers_total") == len(ended)
    assert over(samples, "answer_tokens_total") == sum(len(record.token_times_s) for record in ended)
    tokens = [time_s for record in run.records for time_s in record.token_times_s if start_s < time_s <= end_s]
    assert over(samples, "output_tokens_total") == len(tokens)
    assert all(sample["transfer_p99_s"] is None for sample in samples)
    assert any(sample["transfer_p99_s"] for sample in HEALTHY_APART.window(4))


def test_every_hour_that_is_graded_has_a_healthy_one_of_its_service():
    hours = [hour for hour in vars(unseen).values() if isinstance(hour, Hour)]
    assert set(hours) == set(unseen.OF_ITS_SERVICE)
    assert all(healthy.cause == "healthy" for healthy in unseen.OF_ITS_SERVICE.values())
    assert {hour.cause for hour in hours} == set(incidents.CAUSES)
    assert sorted(hour.cause for hour, _ in dashboards.SHOWN.values()) == sorted(incidents.CAUSES)


def test_nobody_is_forgotten_in_a_flood():
    run = overload.overload(
        lambda now_s, usage, age_s: 3 if usage > 0.5 else 1, replace(overload.FLOOD, length_s=30.0), seed=2
    )
    ends = [client.end for client in run.clients]
    assert set(ends) <= {"whole", "cut", "refused", "gone"}
    assert {"whole", "cut", "refused"} <= set(ends)
    assert all(len(client.token_times_s) <= overload.MAX_ANSWER for client in run.clients)
    assert all(client.asked.kind == "documents" for client in run.clients if client.end == "refused")
    assert max(run.kv_usage) <= 1


def test_a_bill_adds_up_to_the_steps():
    def equal(chunks, step_s, machine):
        return [step_s / len(chunks)] * len(chunks)

    hour = Hour("healthy", Setting(), replace(SHORT, invalid=0.5))
    bill = costs.bill(equal, costs.L4, hour, seed=2)
    assert sum(bill.seconds.values()) == pytest.approx(bill.busy_s)
    run = hour.run(2)
    assert sum(bill.tokens.values()) == sum(count for step in run.steps for *_, count in step.chunks)
    assert 0 < bill.failed_s < bill.busy_s
    assert bill.num_failed == len(run.invalid)


def test_a_steps_seconds_are_the_rooflines():
    machine = costs.H100
    decodes = [(799, 1)] * 4
    overhead_s = sum(ON_H100.overhead_s(4))
    moved = machine.weight_bytes + 4 * (800 + 1) * machine.kv_bytes_per_token
    assert costs.step_seconds(ON_H100, decodes, 4) == pytest.approx(overhead_s + moved / machine.bytes_per_s)
    chunk = [(0, 4000)]
    flops = 4000 * machine.flops_per_token + machine.flops_per_key * 4000 * 4001 // 2 + 2 * ON_H100.shape.output_params
    written_s = 4000 * machine.kv_bytes_per_token / machine.bytes_per_s
    assert costs.step_seconds(ON_H100, chunk, 0) == pytest.approx(
        sum(ON_H100.overhead_s(1)) + flops / machine.flops_per_s + written_s
    )
