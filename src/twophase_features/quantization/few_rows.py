"""Weights of 4 or 8 bits on a CPU in mode 'cpu': few rows are multiplied by our kernel, more rows as without it.

The kernel reads the codes once, where torch would multiply int8 weights in bfloat16. Up to how many rows it is the
faster one is measured when the model is loaded: see `twophase_features.triton.linear`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from twophase.model.linear import Linear
from twophase.model.machine import asks_for_compiled_kernels
from twophase_features.quantization.weight import QuantizedWeight
from twophase_kernels import KernelsUnavailableError, mode
from twophase_kernels.packed_codes_linear import fits, launch_packed_codes_linear, pack_code_words, pack_scales


@dataclass(frozen=True, slots=True)
class FewRowsCodes:
    """x @ weight.T + bias, by the kernel for up to `max_rows` rows and by `many` for more.

    Attributes:
        words, scales, minima: As the kernel reads them. Without minima the codes have 8 bits.
        x_dtype: x's dtype.
        input_order: Which input each column belongs to; None: they are in order.
        max_rows: 0 until it has been measured.
        dtype: The dtype of the kernel's results; None: x's.
    """

    many: Linear
    words: Int32[Tensor, "B W 64"]
    scales: Float[Tensor, "B G 64"]
    minima: Float[Tensor, "B G 64"] | None
    num_outputs: int
    bias: Float[Tensor, "O"] | None
    x_dtype: torch.dtype
    input_order: Int[Tensor, "I"] | None
    max_rows: int = 0
    dtype: torch.dtype | None = None

    @classmethod
    def from_weight(
        cls, weight: QuantizedWeight, bias: Float[Tensor, "O"] | None, dtype: torch.dtype, many: Linear
    ) -> "FewRowsCodes":
        """`many` is the layer for more rows."""
        codes, minima = weight.codes, weight.minima
        if weight.bits == 4 and minima is None:
            codes, minima = codes + 8, -8 * weight.scales
        packed = None if minima is None else pack_scales(minima)
        words, scales = pack_code_words(codes, weight.bits), pack_scales(weight.scales)
        return cls(many, words, scales, packed, weight.shape[0], bias, dtype, weight.input_order)

    @property
    def bits(self) -> int:
        return 8 if self.minima is None else 4

    @property
    def x_form(self) -> tuple[int, torch.dtype]:
        """I, and x's dtype."""
        return self.words.shape[1] * 32 // self.bits, self.x_dtype

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        return self.few(x) if x.shape[0] <= self.max_rows else self.many(x)

    def few(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        """The product by the kernel. Raises ValueError for an x that does not fit the weight."""
        num_inputs, dtype = self.x_form
        if x.shape[1] != num_inputs or x.dtype != dtype or x.stride(1) != 1:
            raise ValueError(
                f"x must be [T, {num_inputs}] {dtype} with contiguous rows, got {x.dtype} {tuple(x.shape)} "
                f"with strides {x.stride()}."
            )
        if self.input_order is not None:
            x = x.index_select(1, self.input_order)
        return launch_packed_codes_linear(
            x, self.words, self.scales, self.minima, self.num_outputs, self.bias, self.dtype
        )


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
        return asks_for_compiled_kernels() and mode() == "cpu" and fits(weight.bits, weight.shape[1], weight.group_size)
    except KernelsUnavailableError:
        return False
