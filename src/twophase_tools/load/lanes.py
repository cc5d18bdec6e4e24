"""A request's life as spans of time: waiting, prefill, decode, paused, preempted. What swim lanes are drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from twophase.core.plan import StepTrace
from twophase_tools.load.records import RecordError, RequestRecord
from twophase_tools.load.steps import end_of, run_span

SpanKind = Literal["waiting", "prefill", "decode", "paused", "preempted"]


@dataclass(frozen=True, slots=True)
class Span:
    """[start_s, end_s) of a lane.

    Attributes:
        kind: 'waiting', in the queue; 'prefill' and 'decode', computed by a step (a prefill chunk, or one token; what a
            preemption lost is recomputed as prefill); 'paused', holding its blocks while steps computed others;
            'preempted', without blocks, until it is computed again.
        step: The step that computed it; None for time spent waiting in any way.
        start: Position of the first token computed.
        num_tokens: Tokens computed.
    """

    kind: SpanKind
    start_s: float | int
    end_s: float | int
    step: int | None = None
    start: int = 0
    num_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """One completion's spans in order of time; they do not overlap.

    Attributes:
        name: The request id, with '.index' behind it from the second completion on.
        token_times_s: When each of its tokens was there.
    """

    name: str
    record: RequestRecord
    index: int
    spans: tuple[Span, ...]
    token_times_s: tuple[float | int, ...]

    @property
    def end_s(self) -> float | int:
        return self.spans[-1].end_s if self.spans else self.record.arrival_s


def lanes_of(records: Sequence[RequestRecord], steps: Sequence[StepTrace]) -> list[Lane]:
    """A lane per completion, by arrival. Steps may know of requests that `records` leaves out; they get no lane.

    Worked example: A arrives at 0 and B at 1; a step from 0 to 4 prefills A, a step from 4 to 5 decodes A and prefills
    B. A: prefill [0, 4), decode [4, 5). B: waiting [1, 4), prefill [4, 5).

    Raises:
        RecordError: Two records have the same request id.
    """
    if len({record.request_id for record in records}) < len(records):
        names = [record.request_id for record in records]
        twice = next(name for name in names if names.count(name) > 1)
        raise RecordError(f"two records have the request id {twice!r}; a lane needs one of its own.")
    diary = _events_of(steps)
    window = (steps[0].start_s, end_of(steps[-1])) if steps else None
    lanes = []
    for record in sorted(records, key=lambda record: record.arrival_s):
        of_record = diary.get(record.request_id, {})
        for index in sorted({0, *of_record}):
            events = of_record.get(index, [])
            name = record.request_id if index == 0 else f"{record.request_id}.{index}"
            # Of the completions beyond the first no record keeps the times.
            times = record.token_times_s if index == 0 else _sampling_times(events)
            lanes.append(Lane(name, record, index, _spans(record, index, events, window), times))
    return lanes


@dataclass(frozen=True, slots=True)
class _Event:
    """What a step did to one completion: computed a chunk of it, or (None) took its blocks."""

    step: StepTrace
    chunk: Span | None


def _events_of(steps: Sequence[StepTrace]) -> dict[str, dict[int, list[_Event]]]:
    """What happened to each request's completions, by their indices."""
    events: dict[str, dict[int, list[_Event]]] = {}
    for step in steps:
        start_s, end_s = run_span(step)
        found: list[tuple[str, int, Span | None]] = [(*key, None) for key in step.preempted]
        for position, (request_id, index, start, count) in enumerate(step.chunks):
            kind: SpanKind = "decode" if position < step.num_decodes + step.num_verifying else "prefill"
            found.append((request_id, index, Span(kind, start_s, end_s, step.step, start, count)))
        for request_id, index, chunk in found:
            events.setdefault(request_id, {}).setdefault(index, []).append(_Event(step, chunk))
    return events


def _spans(
    record: RequestRecord, index: int, events: Sequence[_Event], window: tuple[float | int, float | int] | None
) -> tuple[Span, ...]:
    """`window`: what the steps cover; None without steps."""
    spans: list[Span] = []

    def idle(kind: SpanKind, start_s: float | int, end_s: float | int) -> None:
        if end_s > start_s:
            spans.append(Span(kind, start_s, end_s))

    state: SpanKind = "waiting"
    since_s: float | int | None = record.arrival_s if index == 0 else None  # the others never stood in the queue
    scheduled_s = record.first_scheduled_s
    if since_s is not None and scheduled_s is not None and (window is None or scheduled_s < window[0]):
        idle(state, since_s, scheduled_s)  # the steps begin later: what came next is not known
        since_s = None
    last: _Event | None = None
    for event in events:
        start_s = event.step.start_s if event.chunk is None else event.chunk.start_s
        if since_s is not None:
            idle(state, since_s, start_s)
        elif last is not None and event.step.step > last.step.step + 1:
            idle("paused", spans[-1].end_s, start_s)
        if event.chunk is None:
            state, since_s = "preempted", start_s
        else:
            spans.append(event.chunk)
            since_s = None
        last = event
    end_s = record.finished_s
    if end_s is None and window is not None:
        end_s = window[1]
    if since_s is not None and end_s is not None:
        idle(state, since_s, end_s)  # it ended, or the steps did, while it waited
    return tuple(spans)


def _sampling_times(events: Sequence[_Event]) -> tuple[float | int, ...]:
    return tuple(end_of(event.step) for event in events if event.chunk is not None and event.chunk.kind == "decode")
