"""Pictures of a run, drawn from what really happened: swim lanes, and what each step computes."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from twophase.core.plan import StepTrace
from twophase_tools.colours import COLOURS, DECODE, EMPTY, INK, LINE, PREFILL
from twophase_tools.load.lanes import Lane, SpanKind, lanes_of
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.steps import num_decode_tokens, num_tokens

VERMILION = COLOURS[5]
SPAN_COLOURS: dict[SpanKind, str] = {
    "waiting": EMPTY,
    "prefill": PREFILL,
    "decode": DECODE,
    "paused": "white",
    "preempted": VERMILION,
}
SPAN_HATCHES: dict[SpanKind, str] = {"paused": "/////"}  # without a colour of its own, told from what waits
SPAN_LABELS: dict[SpanKind, str] = {
    "waiting": "waiting",
    "prefill": "prefill chunk",
    "decode": "decode",
    "paused": "paused: holds blocks, not computed",
    "preempted": "preempted",
}
NAMED_LANES = 40  # more names than that cannot be read
LANE_HEIGHT = 0.72


def draw_swim_lanes(
    records: Sequence[RequestRecord], steps: Sequence[StepTrace], *, title: str = "", milliseconds: bool = False
) -> Figure:
    """A row per completion, by arrival: what it was doing when; a tick at each token.

    Args:
        milliseconds: The time axis in ms instead of s.

    Raises:
        RecordError: Two records have the same request id.
    """
    return draw_lane_panels({title or "Requests by arrival": (records, steps)}, milliseconds=milliseconds)


def draw_lane_panels(
    runs: Mapping[str, tuple[Sequence[RequestRecord], Sequence[StepTrace]]], *, milliseconds: bool = False
) -> Figure:
    """Swim lanes of several runs, a panel each under its title, on one time axis.

    Raises:
        RecordError: Two records of a run have the same request id.
    """
    heights = [0.7 + min(9.0, 0.3 * max(2, len(lanes_of(*run)))) for run in runs.values()]
    figure, panels = plt.subplots(
        len(runs), 1, figsize=(10, 0.6 + sum(heights)), height_ratios=heights, squeeze=False, facecolor="white"
    )
    for axes, (title, run) in zip(panels[:, 0], runs.items(), strict=True):
        _swim_lanes(axes, *run, milliseconds)
        axes.set_title(title, loc="left", fontsize=10)
    end = max(axes.get_xlim()[1] for axes in panels[:, 0])
    for axes in panels[:, 0]:
        axes.set_xlim(0, end)
        axes.label_outer()
    lanes = [lane for run in runs.values() for lane in lanes_of(*run)]
    handles = _legend_of(_kinds_of(lanes), any(lane.token_times_s for lane in lanes))
    figure.legend(handles=handles, loc="upper right", ncol=max(1, len(handles)), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / (0.6 + sum(heights))))
    return figure


def draw_batch_composition(steps: Sequence[StepTrace], *, token_budget: int | None = None) -> Figure:
    """Decode and prefill tokens of each step, against the token budget."""
    figure, axes = plt.subplots(figsize=(10, 3.4), facecolor="white")
    numbers = [step.step for step in steps]
    decodes = [num_decode_tokens(step) for step in steps]
    prefills = [num_tokens(step) - num_decode_tokens(step) for step in steps]
    bars: dict[str, Any] = {"width": 1.0, "edgecolor": "white", "linewidth": 0.1}
    axes.bar(numbers, decodes, color=DECODE, label="decode tokens", **bars)
    axes.bar(numbers, prefills, bottom=decodes, color=PREFILL, label="prefill tokens", **bars)
    if token_budget is not None:
        most = max(1, *map(sum, zip(decodes, prefills, strict=True)), 0)
        is_near = token_budget <= 5 * most  # else it is named, but left outside
        name = f"token budget: {token_budget:,}" + ("" if is_near else ", far above")
        axes.axhline(token_budget, color=VERMILION, linewidth=1, linestyle="--", label=name)
        axes.set_ylim(0, 1.12 * (token_budget if is_near else most))
    if numbers:
        axes.set_xlim(numbers[0] - 0.5, numbers[-1] + 0.5)
    axes.set(xlabel="step of the engine", ylabel="tokens computed")
    axes.set_title("What each step computes", loc="left")
    _plain(axes)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncol=6, frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def _start_of(records: Sequence[RequestRecord], steps: Sequence[StepTrace]) -> float | int:
    """Time 0 of a picture: the first arrival or step."""
    return min([record.arrival_s for record in records] + [step.start_s for step in steps], default=0.0)


def _plain(axes: Axes) -> None:
    axes.spines[["right", "top"]].set_visible(False)


def _swim_lanes(axes: Axes, records: Sequence[RequestRecord], steps: Sequence[StepTrace], milliseconds: bool) -> None:
    lanes = lanes_of(records, steps)
    origin_s = _start_of(records, steps)
    scale = 1000 if milliseconds else 1
    for kind in _kinds_of(lanes):
        boxes = [
            Rectangle(
                ((span.start_s - origin_s) * scale, row - LANE_HEIGHT / 2),
                (span.end_s - span.start_s) * scale,
                LANE_HEIGHT,
            )
            for row, lane in enumerate(lanes)
            for span in lane.spans
            if span.kind == kind
        ]
        edge = LINE if kind in ("waiting", "paused") else "white"
        hatch = SPAN_HATCHES.get(kind)
        axes.add_collection(
            PatchCollection(boxes, facecolor=SPAN_COLOURS[kind], edgecolor=edge, linewidth=0.3, hatch=hatch)
        )
    ticks = [(row, (time_s - origin_s) * scale) for row, lane in enumerate(lanes) for time_s in lane.token_times_s]
    half = LANE_HEIGHT / 2
    axes.add_collection(
        LineCollection(
            [[(at, row - half), (at, row + half)] for row, at in ticks],
            colors=INK,
            linewidths=0.8 if len(ticks) <= 400 else 0.35,
        )
    )
    end_s = max((max(lane.end_s, *lane.token_times_s, lane.end_s) for lane in lanes), default=origin_s + 1)
    axes.set(xlim=(0, 1.005 * (end_s - origin_s) * scale or 1), ylim=(max(1, len(lanes)) - 0.4, -0.6))
    axes.set_xlabel(f"time since the first arrival, {'ms' if milliseconds else 's'}")
    _name_lanes(axes, lanes)
    _plain(axes)


def _kinds_of(lanes: Sequence[Lane]) -> list[SpanKind]:
    return [kind for kind in SPAN_COLOURS if any(span.kind == kind for lane in lanes for span in lane.spans)]


def _legend_of(kinds: Sequence[SpanKind], has_tokens: bool) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [
        Patch(
            facecolor=SPAN_COLOURS[kind],
            edgecolor=LINE,
            linewidth=0.4,
            label=SPAN_LABELS[kind],
            hatch=SPAN_HATCHES.get(kind),
        )
        for kind in kinds
    ]
    if has_tokens:
        handles.append(Line2D([], [], color=INK, linestyle="", marker="|", markersize=9, label="token"))
    return handles


def _name_lanes(axes: Axes, lanes: Sequence[Lane]) -> None:
    if len(lanes) <= NAMED_LANES:
        axes.set_yticks(range(len(lanes)), [lane.name for lane in lanes], fontsize=8)
        axes.tick_params(axis="y", length=0)
    else:
        axes.set_ylabel(f"{len(lanes):,} requests, by arrival")
