"""Pictures of where memory goes."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from twophase_labs.kit.draw import one_axes
from twophase_labs.machine.pictures import COLOURS, INK, LINE

GIB = 2**30


def draw_cache_growth(bytes_per_token: Mapping[str, int], max_tokens: int) -> Figure:
    """GiB of K and V against the length of one sequence, a line per model."""
    lengths = np.array([2**n for n in range(8, max_tokens.bit_length())])
    figure, axes = one_axes(8, 3.4, "K and V of one sequence")
    for index, (name, num_bytes) in enumerate(bytes_per_token.items()):
        style = ("-", "--", "-.", ":")[index % 4]
        gib = lengths * num_bytes / GIB
        axes.plot(lengths, gib, style, color=COLOURS[index], linewidth=2)
        axes.annotate(f" {name}", (lengths[-1], gib[-1]), va="center", color=INK)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="tokens in the sequence", ylabel="K and V (GiB)", xlim=(lengths[0], lengths[-1]))
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=30)
    axes.grid(color=LINE, alpha=0.3)
    figure.tight_layout()
    return figure


def draw_budgets(cards: Mapping[str, Mapping[str, float]]) -> Figure:
    """For each card a bar that is its memory, cut into parts of so many GB."""
    figure, axes = plt.subplots(figsize=(9, 0.9 + 1.1 * len(cards)), facecolor="white")
    for row, parts_gb in enumerate(cards.values()):
        left, total = 0.0, sum(parts_gb.values())
        for index, (name, size) in enumerate(parts_gb.items()):
            share = 100 * size / total
            hatch = ("", "//", "..", "xx")[index % 4]
            axes.barh(row, share, 0.5, left=left, color=COLOURS[index], alpha=0.6, edgecolor="white", hatch=hatch)
            text = f"{name}\n{size:.4g} GB, {share:.0f} %"
            axes.text(left + share / 2, row - 0.3, text, ha="center", va="bottom", color=INK, fontsize=9)
            left += share
    axes.set(xlim=(0, 100), ylim=(-0.95, len(cards) - 0.6), xlabel="share of the card's memory (%)")
    axes.set_yticks(range(len(cards)), list(cards))
    axes.invert_yaxis()
    axes.set_title("What fills a card", loc="left")
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.tight_layout()
    return figure


def draw_reserved(gb: Mapping[str, np.ndarray], room_gb: float) -> Figure:
    """GB of K and V set aside for the first n requests, a line per rule, and how many the room suffices for."""
    figure, axes = one_axes(8, 3.6, "Memory against batch, by what is set aside for a request")
    most = max(int((reserved <= room_gb).sum()) for reserved in gb.values())
    for index, (name, reserved) in enumerate(gb.items()):
        style = ("-", "--", "-.")[index % 3]
        axes.plot(range(1, len(reserved) + 1), reserved, style, color=COLOURS[index], linewidth=2, label=name)
        fits = int((reserved <= room_gb).sum())
        axes.plot(fits, reserved[fits - 1], "o", color=COLOURS[index], markeredgecolor=INK)
        axes.annotate(f"{fits}", (fits, room_gb), (0, 5), textcoords="offset points", ha="center", color=INK)
    axes.axhline(room_gb, color=INK, linewidth=1)
    axes.annotate(" room", (0, room_gb), (0, 4), textcoords="offset points", color=INK)
    axes.set(xlim=(0, 1.25 * most), ylim=(0, 1.6 * room_gb))
    axes.set(xlabel="requests in the batch", ylabel="K and V set aside (GB)")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    return figure
