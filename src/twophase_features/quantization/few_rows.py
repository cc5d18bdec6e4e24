"""Layers on a CPU in mode 'cpu' that multiply few rows by our kernel, and more rows as without it.

`twophase_features.triton.linear` says up to how many rows, and makes the layers of plain weights. Weights of 4 or 8
bits become such layers here: the kernel reads the codes once, where torch would multiply int8 weights in bfloat16.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from twophase.model.linear import Linear
from twophase.model.machine import prefers_kernels
from twophase_features.quantization.weight import QuantizedWeight
from twophase_kernels import KernelsUnavailableError, mode
from twophase_kernels.packed_linear import fits, launch_packed_linear, pack_code_words, pack_scales


@dataclass(frozen=True, slots=True)
class FewRows:
    """x @ weight.T + bias, by a kernel for up to `max_rows` rows and by `many` for more.

    Attributes:
        words: The weight as the kernel reads it.
        scales, minima: The codes' scales and minima, as the kernel reads them; None: the words hold floats.
        shape: (O, I).
        x_dtype: x's dtype.
        input_order: Which input each column belongs to; None: they are in order.
        max_rows: 0 until `with_kernels` sets it.
        dtype: The dtype of the kernel's results; None: x's. The head's are float32, for its callers widen them.
    """

    many: Linear
    words: Shaped[Tensor, "B W 64"]
    scales: Float[Tensor, "B G 64"] | None
    minima: Float[Tensor, "B G 64"] | None
    shape: tuple[int, ...]
    bias: Float[Tensor, "O"] | None
    x_dtype: torch.dtype
    input_order: Int[Tensor, "I"] | None = None
    max_rows: int = 0
    dtype: torch.dtype | None = None

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        return self.few(x) if x.shape[0] <= self.max_rows else self.many(x)

    def few(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        """The product by the kernel. Raises ValueError for an x that does not fit the weight."""
        if x.shape[1] != self.shape[1] or x.dtype != self.x_dtype or x.stride(1) != 1:
            raise ValueError(
                f"x must be [T, {self.shape[1]}] {self.x_dtype} with contiguous rows, got {x.dtype} {tuple(x.shape)} "
                f"with strides {x.stride()}."
            )
        if self.input_order is not None:
            x = x.index_select(1, self.input_order)
        return launch_packed_linear(x, self.words, self.shape[0], self.bias, self.scales, self.minima, self.dtype)


def few_rows_of_codes(
    weight: QuantizedWeight, bias: Float[Tensor, "O"] | None, dtype: torch.dtype, many: Linear
) -> FewRows:
    """The layer of a weight that `has_few_rows_kernel`; `many` is the layer for more rows."""
    codes, minima = weight.codes, weight.minima
    if weight.bits == 4 and minima is None:
        codes, minima = codes + 8, -8 * weight.scales
    words, scales = pack_code_words(codes, weight.bits), pack_scales(weight.scales)
    minima = None if minima is None else pack_scales(minima)
    return FewRows(many, words, scales, minima, tuple(weight.shape), bias, dtype, weight.input_order)


def has_few_rows_kernel(weight: QuantizedWeight, dtype: torch.dtype) -> bool:
    """Whether kernels for the CPU are asked for by name, and one multiplies this weight: codes of 4 bits in groups of
    32, 64 or 128, or of 8 bits with a scale per output, activations as they are.

    By name, because the words are memory that torch's backend would not use, and a weight is loaded for any backend.
    """
    if weight.activations is not None or weight.codes.dtype != torch.int8:
        return False
    if dtype not in (torch.float32, torch.bfloat16) or (weight.bits == 8 and weight.minima is not None):
        return False
    try:
        is_wanted = prefers_kernels(weight.codes.device) and mode() == "cpu"
        return is_wanted and fits(weight.bits, weight.shape[1], weight.group_size)
    except KernelsUnavailableError:
        return False
