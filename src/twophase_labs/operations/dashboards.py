"""The same dashboard for every hour: a row per metric, a column per hour, one scale in a row."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from twophase_labs.operations.incidents import (
    BATCHING,
    FORMAT,
    HEALTHY,
    HEALTHY_APART,
    KV,
    RETRIEVAL,
    TRANSFER,
    Hour,
    Sample,
)
from twophase_tools.colours import COLOURS, INK, LINE

# In the order of the columns; the notebook does not say which is which.
SHOWN: Mapping[str, tuple[Hour, int]] = {
    "healthy": (HEALTHY, 5),
    "A": (FORMAT, 1),
    "B": (BATCHING, 2),
    "C": (KV, 1),
    "D": (TRANSFER, 3),
    "E": (RETRIEVAL, 3),
}
ROWS = (
    ("a", "K/V in use, %"),
    ("b", "ITL p99, s"),
    ("c", "TTFT p99, s"),
    ("d", "largest prefill\nin a step, tokens"),
    ("e", "tokens per answer"),
    ("f", "invalid JSON, %"),
    ("g", "needles found in\nlong texts, %"),
    ("h", "transfer p99, s"),
)
LOGARITHMIC = "bch"


def window(name: str) -> list[Sample]:
    """The samples of a column; 'healthy, apart' belongs to D, whose prefill and decode have a GPU each."""
    hour, seed = (HEALTHY_APART, 5) if name == "healthy, apart" else SHOWN[name]
    return hour.window(seed)


def curve(row: str, samples: Sequence[Sample]) -> list[float | None]:
    """What a row shows of a window: gauges as they are, counters as what they rose by from sample to sample."""

    def ratio(part: str, whole: str, factor: float) -> list[float | None]:
        pairs = [
            (float(b[part] or 0) - float(a[part] or 0), float(b[whole] or 0) - float(a[whole] or 0))
            for a, b in pairwise(samples)
        ]
        return [None, *[factor * rose / of if of else None for rose, of in pairs]]

    def gauge(name: str, factor: float = 1.0) -> list[float | None]:
        return [None if (value := sample[name]) is None else factor * value for sample in samples]

    return {
        "a": lambda: gauge("kv_usage", 100.0),
        "b": lambda: gauge("itl_p99_s"),
        "c": lambda: gauge("ttft_p99_s"),
        "d": lambda: gauge("largest_prefill_tokens"),
        "e": lambda: ratio("answer_tokens_total", "answers_total", 1.0),
        "f": lambda: ratio("json_invalid_total", "json_total", 100.0),
        "g": lambda: ratio("long_needles_found_total", "long_needles_total", 100.0),
        "h": lambda: gauge("transfer_p99_s"),
    }[row]()


def draw_dashboards() -> Figure:
    """A column per hour. Where nothing is drawn, there was nothing to measure."""
    names = list(SHOWN)
    figure, panels = plt.subplots(len(ROWS), len(names), figsize=(11, 9.5), facecolor="white", sharex=True,
                                  sharey="row", squeeze=False)  # fmt: skip
    for row, (letter, title) in enumerate(ROWS):
        for column, name in enumerate(names):
            axes, samples = panels[row, column], window(name)
            values = [float("nan") if value is None else value for value in curve(letter, samples)]
            times_s = [sample["time_s"] for sample in samples]
            axes.plot(
                times_s, values, color=COLOURS[0] if column else COLOURS[2], linewidth=1.6, marker=".", markersize=3
            )
            axes.grid(axis="y", color=LINE, linewidth=0.5)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=7)
            if letter in LOGARITHMIC:
                axes.set_yscale("log")
                axes.yaxis.set_minor_formatter(NullFormatter())
            if row == 0:
                axes.set_title(name, fontsize=10)
        if letter not in LOGARITHMIC:
            panels[row, 0].set_ylim(0, 105 if title.endswith("%") else None)
        elif letter == "h":
            panels[row, 0].set_ylim(1, 30)
        panels[row, -1].text(1.04, 0.5, letter, transform=panels[row, -1].transAxes, va="center", fontsize=9, color=INK)
        panels[row, 0].set_ylabel(f"{letter}  {title}", rotation=0, ha="right", va="center", fontsize=8, color=INK)
    for axes in panels[-1]:
        axes.set_xlabel("time in s", fontsize=8)
    figure.tight_layout(h_pad=0.3, w_pad=0.3)
    plt.close(figure)
    return figure
