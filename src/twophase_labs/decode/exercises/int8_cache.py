"""3.12 int8 K and V: quantise and dequantise with a scale per token and head."""

from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, finite, reject, unchanged
from twophase_labs.machine.exercise import cases, exercise

SHAPES = cases(tokens=(1, 5), heads=(1, 3))

INT8 = exercise(
    "3.12", "K and V in one byte", "quantise dequantise", points=4, minutes=8, lines=5, difficulty=2, time_limit_s=10
)
INT8.objective = "store K and V in int8 with a scale per token and head"
INT8.hints = (
    "Take one row, [3.0, -6.0, 1.5], and q_max = 127 by hand: which scale makes -6.0 the number -127?",
    "A row is the last axis: the largest magnitude in it, over q_max, is its scale. `scale[..., None]` stretches it "
    "over the row. A row of zeros needs a scale above zero.",
    "x = x.float()\nlargest = ...  # [T, H_kv]\nscale = ...  # above zero, float32\n"
    "data = ...  # rounded before the cast: the cast alone cuts off\nreturn data.to(torch.int8), scale",
)

AXES = ("token", "head", "element")


def rows(draw: Draw, tokens: int, heads: int, dim: int = 16) -> Tensor:
    """Rows of very different size, as K and V have them."""
    return draw.normal(tokens, heads, dim) * draw.uniform(tokens, heads, 1, low=0.1, high=20)


def quantised(answer: Any, x: Tensor, q_max: int | None = None) -> tuple[Tensor, Tensor]:
    x = x.clone()  # what it may do to its input is looked at on its own
    got = answer.quantise(x) if q_max is None else answer.quantise(x, q_max)
    if not (isinstance(got, tuple | list) and len(got) == 2):
        reject("quantise returns two things, the int8 numbers and their scales")
    data, scale = got
    for what, tensor in (("the numbers", data), ("the scales", scale)):
        if not isinstance(tensor, torch.Tensor):
            reject(f"{what} should be a tensor, and are of type {type(tensor).__name__}")
    return data, scale


def back(answer: Any, data: Tensor, scale: Tensor, expected: Tensor) -> Tensor:
    got = answer.dequantise(data, scale)
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        reject(f"dequantise should give a tensor of shape {list(expected.shape)}, one row per token and head")
    return got.float()


@INT8.check("keeps a byte per number and a scale per token and head", *SHAPES)
def keeps_bytes_and_scales(answer: Any, draw: Draw, tokens: int, heads: int) -> None:
    """Numbers: int8, of the shape of x. Scales: float32, of that shape without its last axis."""
    x = rows(draw, tokens, heads)
    data, scale = quantised(answer, x)
    for what, got, shape, dtype in (
        ("the numbers", data, x.shape, torch.int8),
        ("the scales", scale, x.shape[:2], torch.float32),
    ):
        if got.shape != shape:
            reject(f"{what} have shape {list(got.shape)}, expected {list(shape)}")
        if got.dtype != dtype:
            reject(f"{what} have dtype {str(got.dtype)[6:]}, expected {str(dtype)[6:]}")


@INT8.check("keeps scales above zero", zeros=("one", "all"))
def keeps_scales_above_zero(answer: Any, draw: Draw, zeros: str) -> None:
    """A row of zeros has nothing to divide by; its scale may be anything above 0. Magnitudes, not values: a row may
    be negative throughout."""
    x = rows(draw, 3, 2)
    x[1, 0] = 0
    if zeros == "all":
        x.zero_()
    data, scale = quantised(answer, x)
    finite(scale, "the scale", AXES[:2])
    if not bool((scale > 0).all()):
        token, head = (scale <= 0).nonzero()[0].tolist()
        reject(
            f"the scale of token {token}, head {head} is {float(scale[token, head]):g}",
            "its row is not zero" if bool(x[token, head].any()) else "its row is all zeros",
        )
    compare(back(answer, data, scale, x)[1, 0], torch.zeros(16), what="a row of zeros, stored and read back,")


@INT8.check("lets a loud token harm no other", tokens=(3, 1, 4), heads=(1, 3, 3))
def one_loud_token(answer: Any, draw: Draw, tokens: int, heads: int) -> None:
    """Each row, that is each token and head, has a scale of its own, found from its own elements only."""
    # A token that is a thousand times louder must change its own head's row and no other.
    x = rows(draw, tokens, heads)
    token, head = draw.integer(0, tokens), draw.integer(0, heads)
    louder = x.clone()
    louder[token, head] *= 1000
    before, scale_before = quantised(answer, x)
    after, scale_after = quantised(answer, louder)
    others = torch.ones(tokens, heads, dtype=torch.bool)
    others[token, head] = False
    moved = (before != after).any(-1) | ~torch.isclose(scale_before, scale_after)
    if bool((moved & others).any()):
        t, h = (moved & others).nonzero()[0].tolist()
        reject(f"token {token}, head {head} got louder, and what is stored of token {t}, head {h} changed")


@INT8.check(
    "is off by half a step at most",
    {"q_max": 127, "dim": 1},
    {"q_max": 127, "dim": 64},
    {"q_max": 7, "dim": 64},
    {"q_max": 127, "dim": 16, "tokens": 300},
)
def half_a_step(answer: Any, draw: Draw, q_max: int, dim: int, size: float = 1, tokens: int = 6) -> None:
    """Round to the nearest whole number, and let dequantise undo the scale that quantise applied. If only some
    elements are far off, they did not fit: the largest magnitude of a row, positive or negative, is to become
    q_max, and 128 in an int8 reads -128."""
    # The second x lies in memory head by head, as projections leave it.
    for x in (size * rows(draw, tokens, 3, dim), size * rows(draw, 3, tokens, dim).transpose(0, 1)):
        step = x.abs().amax(-1, keepdim=True) / q_max
        got = back(answer, *quantised(answer, x, q_max), x)
        finite(got, "what is read back", AXES)
        off = (got - x).abs() / step
        if float(off.max()) > 0.501:
            token, head, at = (off == off.max()).nonzero()[0].tolist()
            reject(
                f"stored and read back, {float(x[token, head, at]):.4g} has become {float(got[token, head, at]):.4g}",
                f"at token {token}, head {head}, element {at}: off by {float(off.max()):.2f} steps, at most 0.5",
            )


@INT8.check("uses the whole range", q_max=(127, 7))
def uses_the_range(answer: Any, draw: Draw, q_max: int) -> None:
    """The largest magnitude of a row becomes q_max exactly; q_max is an argument, 127 only its default."""
    x = rows(draw, 5, 3)
    data, _ = quantised(answer, x, None if q_max == 127 else q_max)  # 127 is what goes without saying
    widest = data.int().abs().amax(-1)
    if bool((widest != q_max).any()):
        token, head = (widest != q_max).nonzero()[0].tolist()
        low, high = int(data[token, head].min()), int(data[token, head].max())
        reject(f"token {token}, head {head} is stored in numbers from {low} to {high}; one of them should be ±{q_max}")


INT8.check(
    "works for rows of any size",
    q_max=(31, 127),
    dim=(150, 12),
    size=(1e-8, 1e6),
    hint="Only a row of zeros needs help with its scale; any other row, however small, has its own.",
)(half_a_step)


@INT8.check("leaves its inputs alone")
def leaves_inputs_alone(answer: Any, draw: Draw) -> None:
    """Operations ending in _ write in place."""
    x = rows(draw, 3, 2)
    with unchanged(x=x):
        data, scale = answer.quantise(x)
    with unchanged(data=data, scale=scale):
        answer.dequantise(data, scale)


@INT8.check("takes half precision", dtype=("float16", "float16", "bfloat16", "float64"), size=(300, 1e-5, 1, 1))
def reads_any_dtype(answer: Any, draw: Draw, dtype: str, size: float) -> None:
    """Scales are float32 whatever comes in: float16 has 11 bits and bfloat16 8, and the division loses some of them."""
    x = (rows(draw, 40, 2) * size).to(getattr(torch, dtype))
    data, scale = quantised(answer, x)
    compare(scale.dtype, torch.float32, what=f"the scales' dtype, for {dtype} input,")
    off = (back(answer, data, scale, x) - x.float()).abs() / (x.float().abs().amax(-1, keepdim=True) / 127)
    if not float(off.max()) < 0.51:
        reject(
            f"{dtype} input comes back up to {float(off.max()):.2f} quantisation steps off, at most 0.5",
            "Compute in float32, the scale too.",
        )


INT8.check(
    "takes an empty part",
    tokens=(0,),
    heads=(2,),
    hint="No tokens give no numbers and no scales, of the right shapes: a cache may have nothing to store yet.",
)(keeps_bytes_and_scales)
