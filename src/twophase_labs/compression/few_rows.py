"""What section 7 measures on this CPU: matrices in float32, bf16 and 4 bits, multiplied by more and more rows.

One matrix of each layer, one after the other: as in a decode step they come from memory, not from a cache.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from matplotlib.figure import Figure
from torch import Tensor

from twophase.model.linear import Linear, make_linear
from twophase_features.quantization.linear import FEW_ROWS, Int4Linear, make_quantized_linear
from twophase_features.quantization.rounding import quantize
from twophase_features.quantization.schemes import SCHEMES
from twophase_labs.compression.changed_model import linears, weight_of
from twophase_labs.kit.draw import done, one_axes
from twophase_labs.kit.timing import seconds
from twophase_tools.colours import COLOURS, INK, LINE

NUM_INPUTS = 576
NAMES = {"float32": "float32", "bf16": "bf16, packed", "4 bits": "4 bits, groups of 64"}
LOOKS = {"float32": (COLOURS[5], "s--"), "bf16": (COLOURS[1], "^-"), "4 bits": (COLOURS[0], "o-")}


def formats(kind: str = "mlp.up_proj") -> dict[str, list[Linear]]:
    """These matrices of all layers, as the engine keeps them in each format; without 4 bits where this CPU has no
    operator for them."""
    weights: list[Tensor] = [weight_of(name) for name in linears() if name.endswith(kind)]
    scheme = SCHEMES["int4_g64"]
    made: dict[str, list[Linear]] = {
        "float32": [make_linear(w) for w in weights],
        "bf16": [make_linear(w.to(torch.bfloat16)) for w in weights],
    }
    few_bits = [make_quantized_linear(quantize(w, scheme), None, torch.bfloat16, keeps_plain=False) for w in weights]
    return {**made, "4 bits": few_bits} if all(isinstance(each, Int4Linear) for each in few_bits) else made


def product_times(rows: Sequence[int], repeats: int = 6) -> dict[str, dict[int, float]]:
    """Seconds of a product with all layers' matrices in each format, for each number of rows; the best of several.

    Tries of all formats take turns, so that another program's work does not fall on one of them alone.
    """
    made = formats()
    found: dict[str, dict[int, float]] = {name: {} for name in made}
    for num_rows in rows:
        x = torch.randn(num_rows, NUM_INPUTS)
        inputs = {name: x if name == "float32" else x.bfloat16() for name in made}
        for _ in range(repeats):
            for name, layers in made.items():
                elapsed_s = seconds(partial(_through, layers, inputs[name]))
                found[name][num_rows] = min(elapsed_s, found[name].get(num_rows, elapsed_s))
    return found


def _through(layers: Sequence[Linear], x: Tensor) -> None:
    for layer in layers:
        layer(x)


def draw_times(found: Mapping[str, Mapping[int, float]]) -> Figure:
    """Time of a product relative to float32's, against rows; where the engine changes from 4 bits to bf16."""
    figure, axes = one_axes(7.6, 3.4)
    base = found["float32"]
    for name, times in found.items():
        colour, look = LOOKS[name]
        axes.plot(list(times), [times[n] / base[n] for n in times], look, color=colour, label=NAMES[name])
    axes.axvline(FEW_ROWS + 0.5, color=LINE, linewidth=1, linestyle=":")
    axes.text(FEW_ROWS + 0.7, 0.04, "beyond: the engine takes bf16", fontsize=9, color=INK)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(base), [str(n) for n in base])
    axes.set(xlabel="rows of activations", ylabel="time / float32's", ylim=(0, None))
    axes.set_title("Matrices [1536, 576] of SmolLM2: which is fastest depends on the rows", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9)
    return done(figure)
