"""Quantised linear layers as compressed-tensors, AWQ and GPTQ store them: the tensors and their meaning.

All three keep several codes in an int32, the first in its lowest bits; they differ in the direction in which codes
follow each other, and in the meaning of a zero point. With codes u and zero points z, both unsigned, w = scale * (u -
z).

    compressed-tensors  X.weight_packed [O, I / 8], X.weight_scale [O, G], X.weight_zero_point [O / 8, G]
                        or X.weight [O, I] in int8 or e4m3 (github.com/vllm-project/compressed-tensors)
    AWQ                 X.qweight [I, O / 8], X.scales [G, O], X.qzeros [G, O / 8]; the eight codes of an int32 belong
                        to outputs 0, 2, 4, 6, 1, 3, 5, 7 (arXiv:2306.00978; github.com/casper-hansen/AutoAWQ)
    GPTQ                X.qweight [I / 8, O], X.scales [G, O], X.qzeros [G, O / 8], X.g_idx [I], the group of each input
                        (arXiv:2210.17323; github.com/ModelCloud/GPTQModel)

(Sizes for 4 bits; of 8 bits there are four in an int32.)
"""

from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Int, Int32, Integer, UInt8
from torch import Tensor

from twophase.core.errors import ModelFolderError
from twophase.model.tensor_files import StoredTensor
from twophase_features.quantization.checkpoint_config import CheckpointFormat
from twophase_features.quantization.weight import QuantizedWeight

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
ReadTensor = Callable[[str], Tensor]


class _Parts(NamedTuple):
    """The tensors of a layer, by name. Turned, they are transposed: inputs first, then outputs."""

    codes: str
    scales: str
    zeros: str
    order: str
    is_turned: bool

    def turned(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[::-1] if self.is_turned else shape


PARTS = {
    "compressed-tensors": _Parts("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", False),
    "awq": _Parts("qweight", "scales", "qzeros", "", True),
    "gptq": _Parts("qweight", "scales", "qzeros", "g_idx", True),
}


def is_quantized(stem: str, names: Container[str]) -> bool:
    """Whether the linear layer `stem` is stored in few bits in a folder of these tensors."""
    return f"{stem}.qweight" in names or f"{stem}.weight_scale" in names


def stored_tensors(
    stem: str, shape: tuple[int, ...], checkpoint: CheckpointFormat, names: Container[str]
) -> Mapping[str, StoredTensor]:
    """The stored tensors of a quantised linear layer with weights [O, I]. Raises ModelFolderError if the sizes are not
    multiples of the group size, or of the number of codes in an int32."""
    outputs, inputs = shape
    scheme = checkpoint.scheme
    per_word = 32 // scheme.bits
    num_groups = 1 if scheme.group_size is None else inputs // scheme.group_size
    if scheme.group_size is not None and inputs % scheme.group_size:
        raise ModelFolderError(f"{stem} has {inputs} inputs, which groups of {scheme.group_size} do not divide.")
    if checkpoint.is_packed and (inputs % per_word or outputs % per_word):
        raise ModelFolderError(f"{stem} of shape {list(shape)} cannot be packed {per_word} to a word.")
    parts = PARTS[checkpoint.method]
    if checkpoint.is_packed:
        codes = (outputs // per_word, inputs) if checkpoint.method == "awq" else (outputs, inputs // per_word)
        found = {parts.codes: StoredTensor(parts.turned(codes), ("I32",))}
        zeros = StoredTensor(parts.turned((outputs // per_word, num_groups)), ("I32",))
    else:
        found = {"weight": StoredTensor(shape, ("F8_E4M3",) if scheme.is_float else ("I8",))}
        zeros = StoredTensor((outputs, num_groups), ("I8",))
    found[parts.scales] = StoredTensor(parts.turned((outputs, num_groups)))
    if checkpoint.is_packed and checkpoint.method == "compressed-tensors":
        found["weight_shape"] = StoredTensor((2,), ("I32", "I64"))
    if not scheme.is_symmetric:
        found[parts.zeros] = zeros
    if f"{stem}.{parts.order}" in names:
        found[parts.order] = StoredTensor((inputs,), ("I32", "I64"))
    return {f"{stem}.{name}": stored for name, stored in found.items()}


def read_weight(stem: str, checkpoint: CheckpointFormat, names: Container[str], tensor: ReadTensor) -> QuantizedWeight:
    """The weight of a linear layer, from tensors of the shapes of `stored_tensors`. Raises ModelFolderError if the
    groups of its inputs (g_idx) are not all of one size."""
    scheme, parts = checkpoint.scheme, PARTS[checkpoint.method]
    bits = scheme.bits

    def part(name: str) -> Tensor:
        stored = tensor(f"{stem}.{name}")
        return stored.t() if parts.is_turned else stored

    def along_outputs(packed: Int32[Tensor, "words n"]) -> UInt8[Tensor, "O n"]:
        codes = unpack(packed.t(), bits)
        if checkpoint.method == "awq":
            places = torch.tensor(AWQ_ORDER).argsort()  # where in a word each of eight neighbouring outputs is
            codes = codes.unflatten(1, (-1, len(AWQ_ORDER)))[..., places].flatten(1)
        return codes.t()

    scales = part(parts.scales).float()
    if not checkpoint.is_packed:
        minima = None if scheme.is_symmetric else -scales * part(parts.zeros).float()
        return QuantizedWeight(part("weight"), scales, minima, bits, scheme.activations)
    zeros = torch.tensor(2 ** (bits - 1)).expand(scales.shape)  # codes of either sign are stored with this added
    if not scheme.is_symmetric:  # a zero may be up to one beyond the last code
        zeros = along_outputs(part(parts.zeros)).to(torch.int16) + checkpoint.has_shifted_zeros
    codes = along_outputs(part(parts.codes)) if checkpoint.method == "awq" else unpack(part(parts.codes), bits)
    order = _input_order(f"{stem}.{parts.order}", names, tensor, scales.shape[1])
    return _from_unsigned(codes, scales, zeros, bits, order, scheme.activations)


def unpack(packed: Int32[Tensor, "n words"], bits: int) -> UInt8[Tensor, "n codes"]:
    """The codes of int32 words, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (packed[..., None] >> shifts & (2**bits - 1)).flatten(1).to(torch.uint8)


def _from_unsigned(
    codes: UInt8[Tensor, "O I"],
    scales: Tensor,
    zeros: Integer[Tensor, "O G"],
    bits: int,
    order: Int[Tensor, "I"] | None,
    activations: str | None,
) -> QuantizedWeight:
    """scale * (code - zero), with signed codes and no minima where every zero is in the middle."""
    half = 2 ** (bits - 1)
    is_symmetric = bool((zeros == half).all())
    shift = half if is_symmetric or bits == 8 else 0  # so that a code fits into int8
    minima = None if is_symmetric else scales * (shift - zeros.float())
    signed = (codes.to(torch.int16) - shift).to(torch.int8)
    if order is not None:
        signed = signed[:, order]
    return QuantizedWeight(signed.contiguous(), scales.contiguous(), minima, bits, activations, order)


def _input_order(name: str, names: Container[str], tensor: ReadTensor, num_groups: int) -> Int[Tensor, "I"] | None:
    """Inputs in the order of their groups; None: they are in it."""
    if name not in names:
        return None
    group_of = tensor(name).long()
    size = len(group_of) // num_groups
    if not torch.equal(group_of.sort().values, torch.arange(num_groups).repeat_interleave(size)):
        raise ModelFolderError(f"{name} must have {size} inputs of each of {num_groups} groups. Download it again.")
    order = group_of.argsort(stable=True)
    return None if torch.equal(order, torch.arange(len(order))) else order
