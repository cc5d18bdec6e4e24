"""What section 7 measures on this CPU: one matrix in float32, bf16 and 4 bits, multiplied by more and more rows."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from twophase.core.colours import COLOURS, INK, LINE
from twophase.model.linear import LinearLayer, make_linear
from twophase.quantization.linear import FEW_ROWS, Int4Linear, make_quantized_linear
from twophase.quantization.rounding import quantize
from twophase.quantization.schemes import SCHEMES
from twophase_labs.compression.changed_model import weight_of
from twophase_labs.kit.timing import seconds

NAMES = {"float32": "float32", "bf16": "bf16, packed", "4 bits": "4 bits, groups of 64"}
LOOKS = {"float32": (COLOURS[5], "s--"), "bf16": (COLOURS[1], "^-"), "4 bits": (COLOURS[0], "o-")}


def three_layers(name: str = "15.mlp.up_proj") -> dict[str, LinearLayer]:
    """One of SmolLM2's matrices as the engine keeps it in each format. Where this CPU has no 4-bit operator: two."""
    weight = weight_of(name)
    layers: dict[str, LinearLayer] = {"float32": make_linear(weight), "bf16": make_linear(weight.bfloat16())}
    few_bits = make_quantized_linear(quantize(weight, SCHEMES["int4_g64"]), None, torch.bfloat16, keeps_plain=False)
    if isinstance(few_bits, Int4Linear):
        layers["4 bits"] = few_bits
    return layers


def product_times(rows: Sequence[int], repeats: int = 40) -> dict[str, dict[int, float]]:
    """Seconds of a product in each format, for each number of rows; the best of several tries.

    Tries of all formats take turns, so that another program's work does not fall on one of them alone.
    """
    layers = three_layers()
    found: dict[str, dict[int, float]] = {name: {} for name in layers}
    for num_rows in rows:
        x = torch.randn(num_rows, weight_of("15.mlp.up_proj").shape[1])
        inputs = {name: x if name == "float32" else x.bfloat16() for name in layers}
        for _ in range(repeats):
            for name, layer in layers.items():
                elapsed_s = seconds(lambda layer=layer, given=inputs[name]: layer(given))  # type: ignore[misc]
                found[name][num_rows] = min(elapsed_s, found[name].get(num_rows, elapsed_s))
    return found


def draw_times(found: Mapping[str, Mapping[int, float]]) -> Figure:
    """Time of a product relative to float32's, against rows; where the engine changes from 4 bits to bf16."""
    figure, axes = plt.subplots(figsize=(7.6, 3.4), facecolor="white")
    base = found["float32"]
    for name, times in found.items():
        colour, look = LOOKS[name]
        axes.plot(list(times), [times[n] / base[n] for n in times], look, color=colour, label=NAMES[name])
    axes.axvline(FEW_ROWS + 0.5, color=LINE, linewidth=1, linestyle=":")
    axes.text(FEW_ROWS + 0.7, 0.04, "beyond: the engine takes bf16", fontsize=9, color=INK)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(base), [str(n) for n in base])
    axes.set(xlabel="rows of activations", ylabel="time / float32's", ylim=(0, None))
    axes.set_title("One matrix of SmolLM2, [1536, 576]: who is fastest depends on the rows", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.close(figure)
    return figure
