"""Pictures of blocks that change hands."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Rectangle

from twophase_labs.kit.draw import done
from twophase_tools.colours import COLOURS, EMPTY, INK, LINE, PREFILL

BLUE, GREEN, SKY = COLOURS[0], COLOURS[2], COLOURS[4]
NUM_SHOWN = 12


def draw_hand_over(num_tokens: int, block_size: int, here: Sequence[int], there: Sequence[int]) -> Figure:
    """One layer's slots in two pools; a number is the token whose K and V lie there."""
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(10, 3.6), facecolor="white")
    for axes, blocks, title in (
        (top, here, "prefill pool, as left by the prompt"),
        (bottom, there, "decode pool, where it goes on"),
    ):
        _draw_pool(axes, blocks, num_tokens, block_size)
        axes.set_title(title, loc="left", fontsize=10)
    for number, (source, target) in enumerate(zip(here, there, strict=True)):
        figure.add_artist(
            ConnectionPatch(
                xyA=((source + 0.5) * block_size, 1.0), xyB=((target + 0.5) * block_size, 0.0),
                coordsA="data", coordsB="data", axesA=top, axesB=bottom, arrowstyle="->", color=LINE, linewidth=1.3,
                linestyle=("-", "--", ":")[number % 3],
            )
        )  # fmt: skip
    figure.tight_layout(h_pad=2.2)
    plt.close(figure)
    return figure


def _draw_pool(axes: Axes, blocks: Sequence[int], num_tokens: int, block_size: int) -> None:
    for slot in range(NUM_SHOWN * block_size):
        axes.add_patch(Rectangle((slot, 0), 1, 1, facecolor=EMPTY, edgecolor="white", linewidth=0.8))
    for position in range(num_tokens):
        slot = blocks[position // block_size] * block_size + position % block_size
        axes.add_patch(Rectangle((slot, 0), 1, 1, facecolor=SKY, edgecolor="white", linewidth=0.8))
        axes.text(slot + 0.5, 0.5, str(position), ha="center", va="center", fontsize=8, color=INK)
    for block in range(NUM_SHOWN):
        axes.add_patch(Rectangle((block * block_size, 0), block_size, 1, fill=False, edgecolor=LINE, linewidth=1))
        axes.text((block + 0.5) * block_size, 1.12, str(block), ha="center", va="center", fontsize=8, color=LINE)
    axes.text(-0.6, 1.12, "block", ha="right", va="center", fontsize=8, color=LINE)
    axes.text(-0.6, 0.5, "token", ha="right", va="center", fontsize=8, color=INK)
    axes.set(xlim=(-4, NUM_SHOWN * block_size + 0.2), ylim=(1.35, -0.05), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def draw_overlap(num_layers: int, compute_ms: float, transfer_ms: float) -> Figure:
    """Transfers after the prompt, and transfers behind the layers: what is left to wait for."""
    figure, (whole, layered) = plt.subplots(2, 1, figsize=(10, 3.2), sharex=True, facecolor="white")
    end_ms = num_layers * compute_ms
    for axes, title in ((whole, "all at the end"), (layered, "layer by layer")):
        for layer in range(num_layers):
            start = layer * compute_ms
            axes.barh(0, compute_ms, 0.8, left=start, color=PREFILL, edgecolor="white")
            axes.text(start + compute_ms / 2, 0, f"layer {layer}", ha="center", va="center", fontsize=8, color=INK)
            sent = end_ms + layer * transfer_ms if axes is whole else start + compute_ms
            axes.barh(1, transfer_ms, 0.8, left=sent, color=GREEN, edgecolor="white", hatch="//")
        axes.axvline(end_ms, color=LINE, linestyle="--", linewidth=1)
        axes.set(yticks=(0, 1), ylim=(1.6, -0.6))
        axes.set_yticklabels(("compute", "send"))
        last_ms = num_layers * transfer_ms if axes is whole else transfer_ms
        axes.set_title(f"{title}: all is there {last_ms:g} ms after the last layer", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    layered.set_xlabel("time in ms (eight layers of 30 ms; 6.6 ms to send one)")
    return done(figure)
