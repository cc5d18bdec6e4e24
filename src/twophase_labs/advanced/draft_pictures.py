"""Pictures of drafts: what is accepted, and what it brings."""

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.figure import Figure

from twophase_labs.advanced.draft_engine import Run
from twophase_labs.kit.draw import bar_panels, one_axes, row_of_axes
from twophase_tools.colours import COLOURS, INK, LINE

BLUE, ORANGE, GREEN, _, SKY, VERMILION, _ = COLOURS
STYLES = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (VERMILION, "D"))


def draw_overlap(p: np.ndarray, q: np.ndarray, is_answered: bool = False) -> Figure:
    """Two distributions over a few tokens: what they have in common, and what each has more of.

    Args:
        is_answered: Whether the labels say what becomes of each part.
    """
    labels = ("in both", "the model's p is larger", "the drafter's q is larger")
    if is_answered:
        labels = ("in both: accepted", "p is larger: drawn instead", "q is larger: rejected")
    title = "The two blue parts together are p" if is_answered else "A model's p and a drafter's q over six tokens"
    figure, axes = one_axes(8.5, 3.3, title)
    places, common = np.arange(len(p)), np.minimum(p, q)
    axes.bar(places, common, 0.72, color=SKY, edgecolor=LINE, label=labels[0])
    axes.bar(places, p - common, 0.72, bottom=common, color=BLUE, edgecolor=LINE, label=labels[1])
    axes.bar(
        places, q - common, 0.72, bottom=common, color="white", edgecolor=VERMILION, hatch="///",
        label=labels[2],
    )  # fmt: skip
    axes.set(xlabel="token", ylabel="probability", xticks=places)
    axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    return figure


def draw_speed_ups(speed_up: Callable[..., float], verify_costs: Mapping[str, float], most: int = 12) -> Figure:
    """Speed-up against the number of drafts, a panel per cost of verifying, a curve per acceptance."""
    figure, panels = row_of_axes(len(verify_costs), 10.5, 3.6)
    numbers = range(most + 1)
    for axes, (title, verify_cost) in zip(panels, verify_costs.items(), strict=True):
        for alpha, (colour, marker) in zip((0.9, 0.7, 0.4, 0.1), STYLES, strict=True):
            curve = [speed_up(alpha, number, 0.0, verify_cost) for number in numbers]
            axes.plot(numbers, curve, marker=marker, markersize=4, color=colour, label=f"{alpha:.0%} accepted")
        axes.axhline(1, color=LINE, linewidth=0.8, linestyle="--")
        axes.set(xlabel="drafts in a pass", ylim=(0, None))
        axes.set_title(f"{title}\nverifying a draft costs {100 * verify_cost:.1f} % of a step", loc="left", fontsize=11)
        axes.sharey(panels[0])
    panels[0].set_ylabel("speed-up")
    panels[0].legend(frameon=False, fontsize=9)
    figure.tight_layout()
    return figure


def draw_passes(seconds: Mapping[str, Mapping[int, float]]) -> Figure:
    """Time of a pass against the drafts that each sequence has in it."""
    figure, axes = one_axes(7, 3.3, "What verifying costs")
    for (name, times), (colour, marker) in zip(seconds.items(), STYLES, strict=False):
        axes.plot(list(times), [1000 * s for s in times.values()], marker=marker, color=colour, label=name)
    axes.set(xlabel="drafts per sequence", ylabel="time of a pass (ms)", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    return figure


def draw_speeds(tokens_per_s: Mapping[str, Mapping[str, float]]) -> Figure:
    """Speed of each workload in each way, relative to the first way."""
    figure, axes = one_axes(8, 3.2, "Where drafting wins, and where it loses")
    ways = list(next(iter(tokens_per_s.values())))
    width = 0.8 / len(ways)
    for number, (way, (colour, _)) in enumerate(zip(ways, STYLES, strict=False)):
        places = [at + (number - (len(ways) - 1) / 2) * width for at in range(len(tokens_per_s))]
        heights = [speeds[way] / speeds[ways[0]] for speeds in tokens_per_s.values()]
        bars = axes.bar(places, heights, 0.92 * width, color=colour, edgecolor=INK, linewidth=0.5, label=way)
        labels = axes.bar_label(bars, [f"{height:.2f}" for height in heights], padding=2, fontsize=9, color=INK)
        for label in labels:  # on the dashed line, and legible
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})
            label.set_zorder(3)
    axes.axhline(1, color=LINE, linewidth=0.8, linestyle="--")
    highest = max(speeds[way] / speeds[ways[0]] for speeds in tokens_per_s.values() for way in ways)
    axes.set(xticks=range(len(tokens_per_s)), ylabel="speed, without drafts = 1", ylim=(0, 1.15 * highest))
    axes.set_xticklabels(list(tokens_per_s))
    axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    return figure


def draw_pairs(pairs: Mapping[str, tuple[Run, Run]]) -> Figure:
    """Acceptance rate, and speed relative to the run without drafts, a bar for each workload."""
    columns = {
        "drafts looked at that were accepted (%)": ([100 * one.acceptance for _, one in pairs.values()], "{:.0f}"),
        "speed, without drafts = 1": (
            [one.tokens_per_s / plain.tokens_per_s for plain, one in pairs.values()],
            "{:.2f}",
        ),
    }
    figure, panels = bar_panels(pairs, columns, "A head on hidden states in its domain, and outside", (BLUE, ORANGE))
    panels[1].axvline(1, color=INK, linewidth=0.8, linestyle="--")
    figure.tight_layout()
    return figure
