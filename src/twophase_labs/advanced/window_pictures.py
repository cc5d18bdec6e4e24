"""Windows, sinks, and what they do to pages and to a text."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from twophase_labs.advanced.window_engine import Reading
from twophase_labs.kit.draw import one_axes
from twophase_tools.colours import COLOURS, EMPTY, INK, LINE

BLUE, ORANGE, GREEN, _, _, VERMILION, _ = COLOURS
STYLES = ((BLUE, "-", "o"), (VERMILION, "--", "s"), (GREEN, "-.", "^"))


def draw_sequence(lengths: Sequence[int], block_size: int, window: int, num_sinks: int) -> Figure:
    """A sequence at several lengths: what the next token sees, in its blocks."""
    figure, axes = plt.subplots(figsize=(10, 0.8 + 0.7 * len(lengths)), facecolor="white")
    for row, length in enumerate(lengths):
        for position in range(length + 1):
            is_next = position == length
            in_window, is_sink = position > length - window, position < num_sinks
            colour = "white" if is_next else ORANGE if is_sink else BLUE if in_window else EMPTY
            style = "--" if is_next else "-"
            axes.add_patch(Rectangle((position, row), 0.92, 0.7, facecolor=colour, edgecolor=LINE, linestyle=style))
            ink = "white" if colour == BLUE else INK
            axes.text(position + 0.46, row + 0.36, str(position), ha="center", va="center", fontsize=9, color=ink)
        for start in range(0, length, block_size):
            width = block_size - 0.02
            axes.add_patch(Rectangle((start - 0.05, row - 0.08), width, 0.86, fill=False, edgecolor=INK, linewidth=1.4))
    axes.set(xlim=(-0.3, -(-max(lengths) // block_size) * block_size + 0.3), ylim=(len(lengths), -0.3), yticks=[])
    axes.set_yticks([row + 0.35 for row in range(len(lengths))], [f"{length} tokens" for length in lengths])
    axes.set_xticks([])
    axes.set_xlabel(f"position (frames: blocks of {block_size}; dashed: the next token)")
    patches = [Patch(facecolor=ORANGE), Patch(facecolor=BLUE), Patch(facecolor=EMPTY, edgecolor=LINE)]
    names = ["sink", f"in the window of {window} that ends with the next token", "not seen again"]
    axes.legend(patches, names, ncols=3, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=9)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.tight_layout()
    return figure


def draw_share_of_first(shares: Float[Tensor, "layers H"]) -> Figure:
    """How much attention the first token gets, for each head of each layer."""
    figure, axes = plt.subplots(figsize=(10, 3.2), facecolor="white")
    image = axes.imshow(100 * shares.T, cmap="Greys", vmin=0, vmax=100, aspect="auto")
    axes.set(xlabel="layer", ylabel="head", xticks=range(0, shares.shape[0], 3), yticks=range(0, shares.shape[1], 2))
    axes.set_title(f"Attention that goes to the first token of the text: {100 * float(shares.mean()):.0f} % of all",
                   loc="left")  # fmt: skip
    figure.colorbar(image, label="% of the head's attention")
    figure.tight_layout()
    return figure


def draw_readings(readings: Mapping[str, Reading], window: int, num_bins: int = 8) -> Figure:
    """The same text read in several ways: pages held and perplexity, along the text."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), facecolor="white")
    for (name, reading), (colour, line, marker) in zip(readings.items(), STYLES, strict=False):
        left.plot(reading.num_read, reading.pages, line, color=colour, linewidth=2, label=name)
        parts = reading.losses.tensor_split(num_bins)
        ends = torch.tensor([len(part) for part in parts]).cumsum(0)
        values = [float(part.double().mean().exp()) for part in parts]
        right.plot(ends, values, line, marker=marker, color=colour, label=name)
    for axes in (left, right):
        axes.axvline(window, color=LINE, linestyle=":")
        axes.set(xlabel="tokens read", xlim=(0, None), ylim=(0, None))
        axes.spines[["right", "top"]].set_visible(False)
    left.set(ylabel="blocks in use")
    left.set_title("What it holds (dotted: the window is full)", loc="left", fontsize=11)
    right.set(ylabel="perplexity of the last stretch")
    right.set_title("How surprised it is (lower is better)", loc="left", fontsize=11)
    left.legend(frameon=False)
    figure.tight_layout()
    return figure


def draw_memory(
    distances: Sequence[int], bits: Mapping[str, Sequence[float]], window: int, guess_bits: float
) -> Figure:
    """Surprise at a fact, by how long ago it was told."""
    figure, axes = one_axes(8, 3.4, "Surprise at a number that was told (dotted: the window)")
    for (name, values), (colour, line, marker) in zip(bits.items(), (STYLES[0], STYLES[2]), strict=True):
        axes.plot(distances, values, line, marker=marker, color=colour, label=name)
    axes.axvline(window, color=LINE, linestyle=":")
    axes.axhline(guess_bits, color=LINE, linestyle="--")
    axes.text(distances[0], guess_bits, " any five digits", ha="left", va="bottom", color=INK)
    axes.set(xlabel="tokens ago", ylabel="surprise (bits)", ylim=(-1, None))
    axes.legend(frameon=False)
    figure.tight_layout()
    return figure
