"""Pictures of where memory goes."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from twophase_labs.machine.pictures import COLOURS, INK, LINE

GIB = 2**30


def draw_cache_growth(bytes_per_token: Mapping[str, int], max_tokens: int) -> Figure:
    """GiB of K and V against the length of one sequence, a line per model."""
    lengths = np.array([2**n for n in range(8, max_tokens.bit_length())])
    figure, axes = plt.subplots(figsize=(8, 3.4), facecolor="white")
    for index, (name, num_bytes) in enumerate(bytes_per_token.items()):
        style = ("-", "--", "-.", ":")[index % 4]
        gib = lengths * num_bytes / GIB
        axes.plot(lengths, gib, style, color=COLOURS[index], linewidth=2)
        axes.annotate(f" {name}", (lengths[-1], gib[-1]), va="center", color=INK)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="tokens in the sequence", ylabel="K and V, GiB", xlim=(lengths[0], lengths[-1]))
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=30)
    axes.grid(color=LINE, alpha=0.3)
    axes.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure


def draw_budget(parts_gb: Mapping[str, float], title: str) -> Figure:
    """A card's memory as one bar, cut into parts."""
    figure, axes = plt.subplots(figsize=(9, 1.7), facecolor="white")
    left = 0.0
    for index, (name, size) in enumerate(parts_gb.items()):
        hatch = ("", "//", "..", "xx")[index % 4]
        axes.barh(0, size, left=left, color=COLOURS[index], alpha=0.6, edgecolor="white", hatch=hatch)
        axes.text(left + size / 2, 0.5, f"{name}\n{size:.4g} GB", ha="center", va="bottom", color=INK, fontsize=9)
        left += size
    axes.set(xlim=(0, left), ylim=(-0.45, 1.25), yticks=[], xlabel="GB (10⁹ bytes)")
    axes.set_title(title, loc="left")
    axes.spines[["left", "right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure
