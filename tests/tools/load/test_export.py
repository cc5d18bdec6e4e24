"""What other programs read, read back: JSON, Chrome trace events, Prometheus text."""

import csv
import dataclasses
import io
import json
import math
import random
from collections import defaultdict

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.tools.load.timeline import BLOCK_SIZE, RECORDS, STEPS, A, D
from twophase_tools.load import export, perfetto, prometheus
from twophase_tools.load.lanes import lanes_of
from twophase_tools.load.report import ServingReport
from twophase_tools.load.steps import run_span

# -- rows and JSON


def test_rows_are_flat_and_all_alike():
    for rows in (
        export.request_rows(RECORDS),
        export.token_rows(RECORDS),
        export.step_rows(STEPS, RECORDS, BLOCK_SIZE),
        export.step_rows(STEPS),
    ):
        assert len({tuple(row) for row in rows}) == 1
        assert {type(value) for row in rows for value in row.values()} <= {str, int, float, type(None)}
        out = io.StringIO()
        writer = csv.DictWriter(out, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        assert len(out.getvalue().splitlines()) == len(rows) + 1


def test_request_rows_by_hand():
    first, *_, last = export.request_rows(RECORDS)
    assert (first["request_id"], first["ttft_s"], first["tpot_s"], first["itl_max_s"], first["latency_s"]) == (
        "A",
        10,
        20,
        40,
        70,
    )
    assert (last["first_token_s"], last["ttft_s"], last["itl_max_s"], last["finish_reason"]) == (
        None,
        None,
        None,
        "abort",
    )


def test_token_rows_by_hand():
    rows = export.token_rows([A, D])
    assert [(row["position"], row["time_s"], row["itl_s"]) for row in rows] == [
        (0, 10, None),
        (1, 20, 10),
        (2, 30, 10),
        (3, 70, 40),
    ]


def test_step_rows_by_hand():
    rows = export.step_rows(STEPS, RECORDS, BLOCK_SIZE)
    second = rows[1]
    assert (second["num_decode_tokens"], second["num_prefill_tokens"], second["num_chunks"], second["end_s"]) == (
        1,
        3,
        2,
        20,
    )
    assert (second["queue_depth"], second["queue_age_s"], second["fragmentation"]) == (2, 8, pytest.approx(6 / 20))
    assert (rows[4]["fragmentation"], rows[4]["num_preempted"], rows[4]["num_finished"]) == (None, 1, 1)
    assert (rows[5]["queue_depth"], rows[5]["queue_age_s"]) == (0, None)


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


def test_the_json_document_is_strict_and_complete():
    report = ServingReport.of(RECORDS, STEPS, block_size=BLOCK_SIZE)
    document = json.loads(
        export.to_json(report, RECORDS, STEPS, BLOCK_SIZE, workload="w"), parse_constant=refuse_constant
    )
    assert document["workload"] == "w"
    assert document["report"]["latencies"]["ttft"]["p50"] == 26
    assert [row["request_id"] for row in document["requests"]] == ["A", "B", "C", "D"]
    assert len(document["steps"]) == 6
    with pytest.raises(ValueError):
        export.to_json(report, RECORDS, bad=math.nan)
    json.loads(export.to_json(ServingReport.of([]), []), parse_constant=refuse_constant)


# -- Chrome trace events


def read_trace_events(text):
    """A strict reader of the format: checks what viewers rely on, and gives events by (process, thread) name."""
    document = json.loads(text, parse_constant=refuse_constant)
    names, spans, others = {}, defaultdict(list), defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            if event["name"].endswith("_name"):
                names[event["pid"], event.get("tid")] = event["args"]["name"]
            continue
        assert event["ts"] >= 0
        thread = (names[event["pid"], None], names.get((event["pid"], event.get("tid"))))
        if event["ph"] == "X":
            assert event["dur"] >= 0
            spans[thread].append((event["ts"], event["ts"] + event["dur"], event["name"], event.get("args", {})))
        elif event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
            others[thread[0], event["name"]].append((event["ts"], event["args"]))
        else:
            assert (event["ph"], event["s"]) == ("i", "t")
            others[thread[1], event["name"]].append(event["ts"])
    for thread, its_spans in spans.items():
        check_nested(thread, its_spans)
    return spans, others


def check_nested(thread, spans):
    """Of two spans of a thread, one is inside the other or they do not meet."""
    open_until = []
    for start, end, name, _ in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_until and open_until[-1] <= start + 1e-6:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-6, f"{name} of {thread} sticks out"
        open_until.append(end)


def test_trace_events_tell_the_timeline():
    spans, others = read_trace_events(perfetto.to_perfetto(RECORDS, STEPS))
    second = 1e6
    assert [(start / second, end / second, name) for start, end, name, _ in spans["requests", "A"]] == [
        (0, 1, "waiting"), (1, 9, "prefill"), (11, 19, "decode"), (21, 29, "decode"), (29, 50, "paused"),
        (50, 61, "preempted"), (61, 69, "prefill"),
    ]  # fmt: skip
    assert spans["requests", "B"][1][3] == {"step": 1, "start": 0, "tokens": 3}
    assert [name for *_, name, _ in spans["engine", "steps"][:4]] == ["step 0", "schedule", "run", "update"]
    assert spans["engine", "steps"][2][:2] == (1 * second, 9 * second)
    assert spans["engine", "steps"][16][3] == {
        "decode tokens": 0,
        "prefill tokens": 2,
        "preempted": ["A.0"],
        "finished": ["C.0"],
    }
    assert others["A", "token"] == [10 * second, 20 * second, 30 * second, 70 * second]
    assert others["A", "end: length"] == [70 * second]
    assert others["D", "end: abort"] == [65 * second]
    assert others["engine", "blocks"][1] == (20 * second, {"in use": 5, "cached": 0, "free": 5})
    assert others["engine", "sequences"][1] == (20 * second, {"waiting": 2, "running": 2})
    assert others["engine", "batch"][1] == (10 * second, {"decode": 1, "prefill": 3})


def test_trace_events_of_awkward_times_still_nest():
    rng = random.Random(0)
    now_s, steps = 1e5 + 1 / 3, []
    for step in STEPS * 40:
        parts = [rng.random() * 1e-3 for _ in range(3)]
        names = ("schedule_s", "run_s", "update_s")
        steps.append(dataclasses.replace(step, step=len(steps), start_s=now_s, **dict(zip(names, parts, strict=True))))
        now_s = now_s + parts[0] + parts[1] + parts[2]
    record = dataclasses.replace(
        A, arrival_s=1e5, first_scheduled_s=run_span(steps[0])[0], token_times_s=(now_s,), finished_s=now_s
    )
    spans, _ = read_trace_events(perfetto.to_perfetto([record], steps))
    assert len(spans["requests", "A"]) == len(lanes_of([record], steps)[0].spans)


def test_an_empty_trace_is_a_trace():
    assert read_trace_events(perfetto.to_perfetto([], [])) == ({}, {})


# -- Prometheus


def families(text):
    assert text.endswith("\n")
    found = {family.name: family for family in text_string_to_metric_families(text)}
    for name, family in found.items():
        assert family.documentation, f"{name} has no HELP"
        assert family.type in ("counter", "gauge", "histogram"), f"{name} is {family.type}"
    return found


def samples(family):
    return {
        (sample.name, *(f"{k}={v}" for k, v in sample.labels.items() if k != "model_name")): sample.value
        for sample in family.samples
    }


def test_counters_and_gauges():
    found = families(prometheus.to_prometheus(RECORDS, STEPS[:3], "m"))
    values = {name: family.samples[0].value for name, family in found.items() if family.type != "histogram"}
    assert values == {
        "twophase:prompt_tokens": 17,
        "twophase:generation_tokens": 7,
        "twophase:num_preemptions": 1,
        "twophase:prefix_cache_queries": 17,
        "twophase:prefix_cache_hits": 2,
        "twophase:num_requests_waiting": 2,
        "twophase:num_requests_running": 2,
        "twophase:kv_cache_usage_perc": 0.5,
        "twophase:kv_cache_usage_perc_peak": 0.5,
        "twophase:queue_age_seconds": 0.0,
        "twophase:request_success": 1,
    }
    assert samples(found["twophase:request_success"]) == {
        ("twophase:request_success_total", "finished_reason=stop"): 1,
        ("twophase:request_success_total", "finished_reason=length"): 2,
        ("twophase:request_success_total", "finished_reason=abort"): 1,
        ("twophase:request_success_total", "finished_reason=error"): 0,
    }
    assert "twophase:kv_cache_usage_perc" not in families(prometheus.to_prometheus(RECORDS))
    # The last step's state, and the peak of all; the queue's age as the engine noted it.
    late = [*STEPS[:3], dataclasses.replace(STEPS[3], queue_age_s=35.0)]
    found = families(prometheus.to_prometheus(RECORDS, late, "m"))
    names = ("kv_cache_usage_perc", "kv_cache_usage_perc_peak", "queue_age_seconds")
    assert [found[f"twophase:{name}"].samples[0].value for name in names] == [0.3, 0.5, 35.0]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("time_to_first_token_seconds", [10, 26, 48]),
        ("inter_token_latency_seconds", [10, 10, 40, 20]),
        ("request_time_per_output_token_seconds", [20, 20]),
        ("e2e_request_latency_seconds", [70, 46, 48, 50]),
        ("request_queue_time_seconds", [1, 7, 39]),
        ("request_prompt_tokens", [8, 5, 4, 6]),
        ("request_generation_tokens", [4, 2, 1, 0]),
        ("iteration_tokens", [8, 4, 3, 1, 2, 10]),
    ],
)
def test_histograms_against_numpy(name, values):
    name = f"twophase:{name}"
    found = samples(families(prometheus.to_prometheus(RECORDS, STEPS, "m"))[name])
    assert found.pop((f"{name}_sum",)) == sum(values)
    assert found.pop((f"{name}_count",)) == len(values)
    bounds = [float(key[1].removeprefix("le=")) for key in found]
    assert bounds == sorted(bounds)
    assert bounds[-1] == math.inf
    assert list(found.values()) == [int(np.sum(np.array(values) <= bound)) for bound in bounds]


def test_labels_are_escaped():
    name = 'a "quoted" back\\slash\nand a new line'
    family = families(prometheus.to_prometheus(RECORDS, STEPS, name))["twophase:prompt_tokens"]
    assert family.samples[0].labels == {"model_name": name}


def test_no_records_no_steps():
    found = families(prometheus.to_prometheus([]))
    assert samples(found["twophase:time_to_first_token_seconds"])["twophase:time_to_first_token_seconds_count",] == 0
