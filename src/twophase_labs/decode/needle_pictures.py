"""What storing K and V in fewer bits does: where rows differ, and which needles are still found."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from twophase_labs.decode.needle import DEPTHS, Answer
from twophase_labs.kit.draw import done, one_axes
from twophase_labs.machine.pictures import COLOURS, INK, LINE

MARKERS = ("o", "s", "^")


def draw_row_maxima(x: Float[Tensor, "T H_kv D"], title: str) -> Figure:
    """The largest magnitude of each token's row, head by head, and that of all rows."""
    maxima = x.abs().amax(-1)
    figure, axes = one_axes(9, 3.2, title)
    for head in range(maxima.shape[1]):
        axes.plot(maxima[:, head], MARKERS[head % 3], markersize=3.5, color=COLOURS[head], label=f"KV head {head}")
    axes.axhline(float(maxima.max()), color=INK, linestyle="--", linewidth=1, label="largest of all")
    axes.set(xlabel="token", ylabel="largest magnitude in its row", ylim=(0, None))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.6))
    return done(figure)


def draw_needles(panels: Mapping[str, Mapping[int, Sequence[Answer]]]) -> Figure:
    """For each way of storing a table: a column per context length, a row per needle; bits of the worst token."""
    figure, axes = plt.subplots(1, len(panels), figsize=(3.1 * len(panels), 3.5), facecolor="white", sharey=True)
    for axis, (title, columns) in zip(axes, panels.items(), strict=True):
        grid = [[columns[length][row].bits for length in columns] for row in range(len(DEPTHS))]
        axis.imshow(grid, cmap="Greys", vmin=0, vmax=12, aspect="auto")
        for column, answers in enumerate(columns.values()):
            for row, answer in enumerate(answers):
                mark = f"{answer.bits:.1f}" if answer.found else f"✗ {answer.bits:.1f}"
                colour = INK if answer.bits < 6 else "white"
                weight = "normal" if answer.found else "bold"
                axis.text(column, row, mark, ha="center", va="center", color=colour, weight=weight)
        axis.set_xticks(range(len(columns)), [f"{length:,}" for length in columns])
        axis.set_yticks(range(len(DEPTHS)), [f"{depth:.0%}" for depth in DEPTHS])
        num_found = sum(answer.found for answers in columns.values() for answer in answers)
        axis.set_title(f"{title}\n{num_found} of {len(columns) * len(DEPTHS)} found", loc="left", fontsize=10)
        axis.set_xlabel("tokens of context")
        axis.spines[:].set_color(LINE)
    axes[0].set_ylabel("depth of the needle in the text")
    figure.suptitle(
        "Surprise at the needle's least certain token (bits); ✗: greedy decoding would not write the needle",
        x=0.01,
        ha="left",
    )
    return done(figure)
