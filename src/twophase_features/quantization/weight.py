"""A linear layer's weight in few bits, independent of a kernel's layout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int, Int8, Shaped, UInt8
from torch import Tensor

from twophase.core.errors import ConfigError

Part = slice | tuple[slice, slice]


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """weight[o, i] = scales[o, g] * codes[o, i] + minima[o, g], for i in group g: each group has I / G neighbours.

    One form for all: whole numbers per channel (one group), in groups, with or without a zero point (a minimum is
    - scale * zero point), GGUF's blocks, and e4m3.

    Attributes:
        codes: One per element, in the order of the groups: int8, or float8_e4m3fn. 4-bit codes are 0 to 15 with minima,
            else -8 to 7.
        scales: float32.
        minima: float32; None: all zero.
        bits: Bits per code.
        activations: The type to which the input is rounded ('int8', 'fp8'); None: not rounded.
        input_order: If groups are not of neighbours (GPTQ's act_order), which input each column of codes belongs to.
    """

    codes: Shaped[Tensor, "O I"]
    scales: Float[Tensor, "O G"]
    minima: Float[Tensor, "O G"] | None = None
    bits: int = 8
    activations: str | None = None
    input_order: Int[Tensor, "I"] | None = None

    @property
    def shape(self) -> torch.Size:
        """[O, I]."""
        return self.codes.shape

    @property
    def group_size(self) -> int:
        """Inputs that share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "O I"]:
        """The weight in floating point; computed in float32, then rounded to `dtype`."""
        groups = self.codes.float().unflatten(1, (self.scales.shape[1], -1))
        weight = groups * self.scales[..., None]
        if self.minima is not None:
            weight += self.minima[..., None]
        weight = weight.flatten(1)
        if self.input_order is not None:
            weight = torch.empty_like(weight).index_copy_(1, self.input_order, weight)
        return weight.to(dtype)

    def to(self, device: torch.device) -> "QuantizedWeight":
        order = None if self.input_order is None else self.input_order.to(device)
        return replace(self.changed(lambda each: each.to(device)), input_order=order)

    def __getitem__(self, part: Part) -> "QuantizedWeight":
        """Some rows, `weight[rows]`, or some columns, `weight[:, columns]`: whole groups of them. Raises ConfigError if
        the columns cut a group in two, or the groups are not of neighbours."""
        if not isinstance(part, tuple):
            return self.changed(lambda each: each[part])
        rows, columns = part
        start, stop, _ = columns.indices(self.shape[1])
        if (start, stop) == (0, self.shape[1]):
            return self[rows]
        if self.input_order is not None:
            raise ConfigError(
                "tensor_parallel_size cannot cut weights whose groups are not of neighbouring inputs (GPTQ with "
                "desc_act); use one process, or a model quantised without desc_act."
            )
        scales = slice(0, 1)
        if self.scales.shape[1] > 1:
            if start % self.group_size or stop % self.group_size:
                raise ConfigError(
                    f"tensor_parallel_size would cut a group of {self.group_size} quantised weights in two, at input "
                    f"{start} or {stop}; use fewer processes, smaller groups, or 8 bits per channel."
                )
            scales = slice(start // self.group_size, stop // self.group_size)
        return replace(
            self[rows],
            codes=self.codes[rows, start:stop],
            scales=self.scales[rows, scales],
            minima=None if self.minima is None else self.minima[rows, scales],
        )

    def changed(self, change: Callable[[Tensor], Tensor]) -> "QuantizedWeight":
        """`change` applied to every tensor with a row per output."""
        minima = None if self.minima is None else change(self.minima)
        return replace(self, codes=change(self.codes), scales=change(self.scales), minima=minima)


def can_stack(parts: Sequence[QuantizedWeight]) -> bool:
    """Whether these weights with the same input can be concatenated: they may differ only in their values."""
    kinds = {(each.bits, each.group_size, each.minima is None, each.activations, each.codes.dtype) for each in parts}
    orders = [torch.arange(each.shape[1]) if each.input_order is None else each.input_order for each in parts]
    return len(kinds) == 1 and all(torch.equal(order, orders[0]) for order in orders)


def stack(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """The outputs of several, one after the other; see `can_stack`."""
    if len(parts) == 1:
        return parts[0]
    minima = [each.minima for each in parts if each.minima is not None]
    return replace(
        parts[0],
        codes=torch.cat([each.codes for each in parts]),
        scales=torch.cat([each.scales for each in parts]),
        minima=torch.cat(minima) if minima else None,
    )


def pack_nibbles(codes: Shaped[Tensor, "O I"]) -> UInt8[Tensor, "O half_I"]:
    """Two 4-bit codes in a byte, the first in its low half. Negative codes keep their lowest 4 bits."""
    pairs = codes.to(torch.uint8).unflatten(1, (-1, 2)) & 15
    return pairs[..., 0] | pairs[..., 1] << 4


def unpack_nibbles(packed: UInt8[Tensor, "O half_I"], is_signed: bool) -> Int8[Tensor, "O I"]:
    """Codes 0 to 15, or, signed, -8 to 7."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).to(torch.int8)
    return codes - 16 * (codes > 7).to(torch.int8) if is_signed else codes
