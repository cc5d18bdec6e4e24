"""An answer as a timeline: the prompt's one step, and a step for each token that was written."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from twophase.core.plan import StepTrace
from twophase.core.request import RequestOutput
from twophase_labs.kit.draw import done
from twophase_tools.colours import DECODE, INK, PREFILL


def draw_answer(answer: RequestOutput, steps: Sequence[StepTrace], pieces: Sequence[str]) -> Figure:
    """The steps of one request, as wide as they took; in each the text that it wrote.

    Args:
        steps: The first computes the prompt, each other one token.
        pieces: The text of each token of the answer.
    """
    figure, axes = plt.subplots(figsize=(11, 2.6), facecolor="white")
    start_ms = 0.0
    for number, (step, piece) in enumerate(zip(steps, pieces, strict=False)):
        width_ms = 1e3 * step.run_s
        colour = DECODE if number else PREFILL
        axes.add_patch(Rectangle((start_ms, 0), width_ms, 1, facecolor=colour, edgecolor="white"))
        axes.text(start_ms + width_ms / 2, -0.12, piece.strip() or "(end)", ha="center", va="top", color=INK)
        start_ms += width_ms
    first_ms = 1e3 * steps[0].run_s
    num_read = len(answer.prompt_token_ids)
    for number in range(1, num_read):
        axes.axvline(first_ms * number / num_read, 0.27, 0.75, color="white", linewidth=0.6)
    axes.text(0, 1.1, f"prefill: {num_read} tokens read in one step", color=INK)
    middle_ms = (first_ms + start_ms) / 2
    after = f"decode: a step for each of the {len(pieces) - 1} tokens after the first"
    axes.text(middle_ms, 1.1, after, ha="center", color=INK)
    axes.set(xlim=(0, start_ms), ylim=(-0.55, 1.5), yticks=[], xlabel="milliseconds")
    axes.set_title(answer.outputs[0].text, loc="left", fontsize=12, pad=12)
    axes.spines[["top", "left", "right"]].set_visible(False)
    return done(figure)
