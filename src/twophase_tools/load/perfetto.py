"""A run as Chrome trace events: open the file in ui.perfetto.dev or chrome://tracing.

Format: 'Trace Event Format', the document of Chrome's trace-viewer. Phases used: X a span with a duration, C counters,
i an instant, M names. Times are microseconds; those of a thread nest or follow each other.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from twophase.core.plan import StepTrace
from twophase_tools.load.lanes import Lane, Span, lanes_of
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.steps import end_of, num_tokens

Event = dict[str, Any]

ENGINE_PID, REQUESTS_PID = 1, 2
STEP_TID = 1


def trace_events(records: Sequence[RequestRecord], steps: Sequence[StepTrace]) -> dict[str, Any]:
    """The trace as a dict for `json.dumps`; time 0 is the first arrival or step, whichever came earlier.

    Process 'engine' has a thread with each step and, inside it, schedule, run and update, and counters for the queue,
    the blocks and the batch. Process 'requests' has a thread per completion with its spans (see `lanes`), an instant
    for each token and one for its end.
    """
    starts = [record.arrival_s for record in records] + [step.start_s for step in steps]
    clock = _Microseconds(min(starts, default=0.0))
    events = [*_process(ENGINE_PID, "engine"), *_thread(ENGINE_PID, STEP_TID, "steps")]
    for step in steps:
        events += _step_events(step, clock)
    events += _process(REQUESTS_PID, "requests")
    for tid, lane in enumerate(lanes_of(records, steps), start=1):
        events += _lane_events(lane, tid, clock)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def to_perfetto(records: Sequence[RequestRecord], steps: Sequence[StepTrace]) -> str:
    """`trace_events` as JSON text."""
    return json.dumps(trace_events(records, steps), allow_nan=False)


class _Microseconds:
    """Clock seconds to microseconds since the trace's start, rounded to nanoseconds. Immutable.

    Both ends of a span are rounded before their difference is taken, so what touches goes on touching.
    """

    def __init__(self, origin_s: float | int) -> None:
        self._origin_s = origin_s

    def __call__(self, time_s: float | int) -> float:
        return round((time_s - self._origin_s) * 1e6, 3)

    def span(self, start_s: float | int, end_s: float | int) -> dict[str, float]:
        start = self(start_s)
        return {"ts": start, "dur": round(max(0.0, self(end_s) - start), 3)}


def _process(pid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}


def _thread(pid: int, tid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _step_events(step: StepTrace, clock: _Microseconds) -> Iterator[Event]:
    thread = {"ph": "X", "pid": ENGINE_PID, "tid": STEP_TID, "cat": "step"}
    args = {
        "decode tokens": step.num_decode_tokens,
        "prefill tokens": num_tokens(step) - step.num_decode_tokens,
        "preempted": [f"{request_id}.{index}" for request_id, index in step.preempted],
        "finished": [f"{request_id}.{index}" for request_id, index in step.finished],
    }
    yield thread | clock.span(step.start_s, end_of(step)) | {"name": f"step {step.step}", "args": args}
    start_s = step.start_s
    for name, duration_s in (("schedule", step.schedule_s), ("run", step.run_s), ("update", step.update_s)):
        yield thread | clock.span(start_s, start_s + duration_s) | {"name": name}
        start_s += duration_s
    counters = {
        "sequences": {"waiting": step.num_waiting, "running": step.num_running},
        "blocks": {"in use": step.blocks_in_use, "cached": step.blocks_cached, "free": step.blocks_free},
        "batch": {"decode": step.num_decode_tokens, "prefill": num_tokens(step) - step.num_decode_tokens},
    }
    for name, values in counters.items():
        # What is true after the step; the batch is the step's own.
        time_s = step.start_s if name == "batch" else end_of(step)
        yield {"ph": "C", "pid": ENGINE_PID, "name": name, "ts": clock(time_s), "args": values}


def _lane_events(lane: Lane, tid: int, clock: _Microseconds) -> Iterator[Event]:
    place = {"pid": REQUESTS_PID, "tid": tid}
    yield from _thread(REQUESTS_PID, tid, lane.name)
    for span in lane.spans:
        yield {"ph": "X", **place, **clock.span(span.start_s, span.end_s), **_described(span)}
    yield from _instants("token", lane.token_times_s, place, clock)
    if lane.record.finished_s is not None and lane.index == 0:
        yield from _instants(f"end: {lane.record.finish_reason}", [lane.record.finished_s], place, clock)


def _described(span: Span) -> Event:
    described: Event = {"name": span.kind, "cat": span.kind}
    if span.step is None:
        return described
    return described | {"args": {"step": span.step, "start": span.start, "tokens": span.num_tokens}}


def _instants(
    name: str, times_s: Iterable[float | int], place: dict[str, int], clock: _Microseconds
) -> Iterator[Event]:
    for time_s in times_s:
        yield {"ph": "i", **place, "s": "t", "ts": clock(time_s), "name": name, "cat": "request"}
