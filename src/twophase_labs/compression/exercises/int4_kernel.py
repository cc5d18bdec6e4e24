"""6.7: a product with weights of 4 bits, in Triton."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from twophase_kernels import mode
from twophase_labs.compression.int4_launch import launch_int4_linear, pack_words
from twophase_labs.kit.guarded import run_guarded
from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import exercise

KERNEL = exercise("6.7", "Four bits into the multiplier", "int4_linear_kernel", "kernel", points=5, minutes=24, lines=5)
KERNEL.time_limit_s, KERNEL.difficulty = 60, 3
KERNEL.objective = "read a weight as packed codes, and make it a number only in registers"
KERNEL.hints = (
    "Follow one input i of one output o: in which word of the row is its code, and at which bit of the word? Which "
    "group is it in, and where do that group's scale and minimum stand?",
    "Word `i // 8`, bits `4 * (i % 8)` and the three above. Shift right, then mask: an int32 whose highest bit is "
    "set is negative, and a shift to the right keeps its sign.",
    "Words of a row: `num_inputs // 8`. Scales of a row: `num_groups`, so output o has that of group g at `o * "
    "num_groups + g`. A weight is `scale * code + minimum`, `[BLOCK_O, GROUP]`; `tl.dot` wants `[BLOCK_T, GROUP]` "
    "times `[GROUP, BLOCK_O]`: `tl.trans`, after `.to(x.dtype)`.",
)

OUT_AXES = ("row", "output")


def run_kernel(kernel: Any, x: Tensor, codes: Tensor, scales: Tensor, minima: Tensor, block_o: int = 16) -> Tensor:
    def launch(**tensors: Tensor) -> object:
        return launch_int4_linear(kernel, **tensors, block_o=block_o)

    inputs = {"x": x, "packed": pack_words(codes), "scales": scales, "minima": minima}
    outputs = {"out": torch.empty(len(x), len(codes), dtype=x.dtype)}
    return run_guarded(launch, inputs, outputs)["out"]


def naive(x: Tensor, codes: Tensor, scales: Tensor, minima: Tensor) -> Tensor:
    """Weight by weight, in float64."""
    (num_outputs, num_inputs), num_groups = codes.shape, scales.shape[1]
    weight = torch.zeros(num_outputs, num_inputs, dtype=torch.float64)
    for i in range(num_inputs):
        group = i * num_groups // num_inputs
        weight[:, i] = scales[:, group].double() * codes[:, i].double() + minima[:, group].double()
    return (x.double() @ weight.T).to(x.dtype)


def some_codes(draw: Draw, num_outputs: int, num_inputs: int) -> Tensor:
    return draw.integers(0, 16, num_outputs, num_inputs)


def some_groups(draw: Draw, num_outputs: int, num_groups: int) -> tuple[Tensor, Tensor]:
    """Scales and minima about as far apart from group to group as from output to output."""
    return draw.uniform(num_outputs, num_groups, low=0.5), draw.normal(num_outputs, num_groups)


@KERNEL.check("finds each code", num_outputs=(16, 5, 40))
def finds_each_code(answer: Any, draw: Draw, num_outputs: int) -> None:
    """Eight neighbouring inputs share a word; the first is in its lowest four bits. Only four bits of the word are
    the code: mask the others away."""
    # Rows of x are one-hot, scales 1, minima 0: each row of the output is a column of codes.
    num_inputs = 32
    codes = some_codes(draw, num_outputs, num_inputs)
    codes[:, 7], codes[:, 16] = 15, 0  # the word's sign bit, and a code that is next to nothing
    scales, minima = torch.ones(num_outputs, 1), torch.zeros(num_outputs, 1)
    for columns in torch.arange(num_inputs).split(16):
        x = torch.eye(num_inputs)[columns]
        got = run_kernel(answer.int4_linear_kernel, x, codes, scales, minima)
        wrong = (got - codes[:, columns].T.float()).abs() > 1e-4
        if bool(wrong.logical_or(got.isnan()).any()):
            row, output = (int(n) for n in wrong.logical_or(got.isnan()).nonzero()[0])
            column = int(columns[row])
            reject(
                f"output {output} multiplies input {column} by {got[row, output]:g}; its code there is "
                f"{int(codes[output, column])}",
                f"that code is number {column % 8} of word {column // 8} of the row: scales are 1, minima 0",
            )


@KERNEL.check("gives each group its scale and minimum", num_groups=(2, 9))
def gives_groups_their_scale(answer: Any, draw: Draw, num_groups: int) -> None:
    """scales and minima are [O, G], rows one after the other: a row has `num_groups` of them."""
    # One-hot rows again, one input of each group; all codes are 1, then all 0.
    group, num_outputs = 16, 21
    scales, minima = some_groups(draw, num_outputs, num_groups)
    x = torch.eye(group * num_groups)[draw.integer(0, group) :: group]
    for code in (0, 1):
        codes = torch.full((num_outputs, group * num_groups), code)
        got = run_kernel(answer.int4_linear_kernel, x, codes, scales, minima)
        expected = (code * scales + minima).T.contiguous()
        what = f"the weight in each group, with all codes {code},"
        compare(got, expected, what=what, axes=("group", "output"), atol=1e-4)


@KERNEL.check(
    "sums over all inputs",
    {"num_tokens": 1, "num_outputs": 16, "num_inputs": 16, "group": 16},
    {"num_tokens": 3, "num_outputs": 37, "num_inputs": 192, "group": 64},
    {"num_tokens": 16, "num_outputs": 100, "num_inputs": 576, "group": 32, "block_o": 64},
    {"num_tokens": 7, "num_outputs": 1, "num_inputs": 576, "group": 64},
    {"num_tokens": 2, "num_outputs": 9, "num_inputs": 1152, "group": 16},
)
def sums_over_inputs(
    answer: Any, draw: Draw, num_tokens: int, num_outputs: int, num_inputs: int, group: int, block_o: int = 16
) -> None:
    """Where are the codes of group 1? A row has `num_inputs // 8` words, whatever the size of a group, and
    `columns` counts inputs from the row's beginning. Each group's product is added to `acc`."""
    x = draw.normal(num_tokens, num_inputs)
    codes = some_codes(draw, num_outputs, num_inputs)
    scales, minima = some_groups(draw, num_outputs, num_inputs // group)
    minima -= 5  # about the middle of the codes, so that sums stay small
    got = run_kernel(answer.int4_linear_kernel, x, codes, scales, minima, block_o)
    what = f"the product of {num_tokens} rows with a weight [{num_outputs}, {num_inputs}] in groups of {group}"
    compare(got, naive(x, codes, scales, minima), what=what, axes=OUT_AXES, atol=1e-2)


@KERNEL.check("takes 16-bit activations", dtype=(torch.float16, torch.bfloat16))
def adds_up_in_32_bits(answer: Any, draw: Draw, dtype: torch.dtype) -> None:
    """Both sides of `tl.dot` have x's dtype. What it sums up, and `acc`, stay float32: float16 has 11 bits, and
    2,048 + 1 is 2,048 there. The sum is rounded once, when it is stored."""
    # Sums that float32 holds and 16 bits do not: the weights of later inputs are negative and take back most of it.
    # x and codes are whole numbers, so every sum is a multiple of a quarter. A group's product is about 3,600 quarters,
    # half the running sum 29,000 of them, and float16 has steps of 2 and of 16 quarters there; float32 has them all. So
    # all that a right answer rounds is the result, once, and by at most 2^-11 of it, in bfloat16 2^-8.
    if dtype is torch.bfloat16 and mode() == "interpreted":  # Triton's interpreter cannot compute in it
        return
    num_outputs, num_inputs, group = 20, 1024, 64
    x = draw.integers(0, 16, 3, num_inputs).to(dtype)
    codes = some_codes(draw, num_outputs, num_inputs)
    scales = torch.full((num_outputs, num_inputs // group), 0.25)
    scales[:, scales.shape[1] // 2 :] = -0.25
    minima = torch.zeros_like(scales)
    got = run_kernel(answer.int4_linear_kernel, x, codes, scales, minima)
    what = f"the product in {str(dtype).removeprefix('torch.')}, of sums that only float32 holds,"
    rtol = torch.finfo(dtype).eps / 2
    compare(got, naive(x, codes, scales, minima), what=what, axes=OUT_AXES, rtol=rtol, atol=0)


KERNEL.compiled = partial(sums_over_inputs, num_tokens=3, num_outputs=37, num_inputs=192, group=64)
