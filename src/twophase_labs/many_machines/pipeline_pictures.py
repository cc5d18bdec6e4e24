"""Timetables of pipelines."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from twophase_labs.kit.draw import done
from twophase_labs.many_machines.stages import Spans, bubble_share
from twophase_tools.colours import COLOURS, EMPTY, INK, LINE


def draw_pipeline(timetables: Mapping[str, Spans]) -> Figure:
    """A row per stage, a box per chunk; grey is idle."""
    figure, panels = plt.subplots(
        len(timetables), 1, figsize=(10, 1.45 * len(timetables) + 0.5), sharex=True, facecolor="white", squeeze=False
    )
    for axes, (name, spans) in zip(panels[:, 0], timetables.items(), strict=True):
        makespan = max(end for row in spans for _, end in row)
        axes.barh(range(len(spans)), makespan, 0.8, color=EMPTY, edgecolor=LINE, linewidth=0.5)
        for stage, row in enumerate(spans):
            for chunk, (start, end) in enumerate(row):
                axes.barh(
                    stage, end - start, 0.8, left=start, color=COLOURS[4] if chunk % 2 == 0 else COLOURS[1],
                    edgecolor="white", linewidth=0.5,
                )  # fmt: skip
                if end - start > 0.7:
                    axes.text((start + end) / 2, stage, str(chunk), ha="center", va="center", fontsize=8, color=INK)
        axes.set(yticks=range(len(spans)), ylim=(len(spans) - 0.4, -0.6), ylabel="stage")
        axes.set_title(f"{name}: {bubble_share(spans):.0%} idle", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("time (a stage needs 8 for the whole prompt; grey: idle)")
    return done(figure)
