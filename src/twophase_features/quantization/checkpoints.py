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

import torch
from jaxtyping import Int, Int32, Integer, UInt8
from torch import Tensor

from twophase.core.errors import ModelFolderError
from twophase.model.tensor_files import StoredTensor
from twophase_features.quantization.checkpoint_config import CheckpointFormat
from twophase_features.quantization.weight import QuantizedWeight

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
ReadTensor = Callable[[str], Tensor]


def is_quantized(stem: str, names: Container[str]) -> bool:
    """Whether the linear layer `stem` is stored in few bits in a folder of these tensors."""
    return f"{stem}.qweight" in names or f"{stem}.weight_scale" in names


def stored_tensors(
    stem: str, shape: tuple[int, ...], checkpoint: CheckpointFormat, names: Container[str]
) -> Mapping[str, StoredTensor]:
    """The stored tensors of a quantised linear layer with weights [O, I].

    Raises:
        ModelFolderError: The sizes are not multiples of the group size, or of the number of codes in an int32.
    """
    outputs, inputs = shape
    scheme = checkpoint.scheme
    per_word = 32 // scheme.bits
    num_groups = 1 if scheme.group_size is None else inputs // scheme.group_size
    if scheme.group_size is not None and inputs % scheme.group_size:
        raise ModelFolderError(f"{stem} has {inputs} inputs, which groups of {scheme.group_size} do not divide.")
    if checkpoint.is_packed and (inputs % per_word or outputs % per_word):
        raise ModelFolderError(f"{stem} of shape {list(shape)} cannot be packed {per_word} to a word.")
    if checkpoint.method == "compressed-tensors":
        found, order = {"weight_scale": StoredTensor((outputs, num_groups))}, "weight_g_idx"
        if checkpoint.is_packed:
            found["weight_packed"] = StoredTensor((outputs, inputs // per_word), ("I32",))
            found["weight_shape"] = StoredTensor((2,), ("I32", "I64"))
            zeros = StoredTensor((outputs // per_word, num_groups), ("I32",))
        else:
            found["weight"] = StoredTensor(shape, ("F8_E4M3",) if scheme.is_float else ("I8",))
            zeros = StoredTensor((outputs, num_groups), ("I8",))
        if not scheme.is_symmetric:
            found["weight_zero_point"] = zeros
    else:
        is_awq = checkpoint.method == "awq"
        packed = (inputs, outputs // per_word) if is_awq else (inputs // per_word, outputs)
        found = {
            "qweight": StoredTensor(packed, ("I32",)),
            "qzeros": StoredTensor((num_groups, outputs // per_word), ("I32",)),
            "scales": StoredTensor((num_groups, outputs)),
        }
        order = "" if is_awq else "g_idx"
    if f"{stem}.{order}" in names:
        found[order] = StoredTensor((inputs,), ("I32", "I64"))
    return {f"{stem}.{name}": stored for name, stored in found.items()}


def read_weight(stem: str, checkpoint: CheckpointFormat, names: Container[str], tensor: ReadTensor) -> QuantizedWeight:
    """The weight of a linear layer, from tensors of the shapes of `stored_tensors`.

    Raises:
        ModelFolderError: The groups of its inputs (g_idx) are not all of one size.
    """
    if checkpoint.method == "awq":
        return _read_awq(stem, tensor)
    if checkpoint.method == "gptq":
        return _read_gptq(stem, checkpoint, names, tensor)
    return _read_compressed(stem, checkpoint, names, tensor)


def _read_awq(stem: str, tensor: ReadTensor) -> QuantizedWeight:
    places = torch.tensor(AWQ_ORDER).argsort()  # where in a word each of eight neighbouring outputs is

    def outputs_of(packed: Int32[Tensor, "n words"]) -> UInt8[Tensor, "outputs n"]:
        return unpack(packed, 4).unflatten(1, (-1, len(AWQ_ORDER)))[..., places].flatten(1).t()

    scales = tensor(f"{stem}.scales").float().t()
    zeros = outputs_of(tensor(f"{stem}.qzeros"))
    return _from_unsigned(outputs_of(tensor(f"{stem}.qweight")), scales, zeros, bits=4)


def _read_gptq(stem: str, checkpoint: CheckpointFormat, names: Container[str], tensor: ReadTensor) -> QuantizedWeight:
    bits = checkpoint.scheme.bits
    codes = unpack(tensor(f"{stem}.qweight").t(), bits)
    scales = tensor(f"{stem}.scales").float().t()
    zeros = unpack(tensor(f"{stem}.qzeros"), bits).t()
    if checkpoint.has_shifted_zeros:
        zeros = zeros.to(torch.int16) + 1  # up to one beyond the last code
    order = _input_order(f"{stem}.g_idx", names, tensor, scales.shape[1])
    return _from_unsigned(codes, scales, zeros, bits, order)


def _read_compressed(
    stem: str, checkpoint: CheckpointFormat, names: Container[str], tensor: ReadTensor
) -> QuantizedWeight:
    scheme = checkpoint.scheme
    scales = tensor(f"{stem}.weight_scale").float()
    zero_name = f"{stem}.weight_zero_point"
    if not checkpoint.is_packed:
        codes = tensor(f"{stem}.weight")
        minima = None if scheme.is_symmetric else -scales * tensor(zero_name).float()
        return QuantizedWeight(codes, scales, minima, scheme.bits, scheme.activations)
    codes = unpack(tensor(f"{stem}.weight_packed"), scheme.bits)
    half = 2 ** (scheme.bits - 1)  # codes of either sign are stored with this added
    zeros = torch.tensor(half).expand(scales.shape)
    if not scheme.is_symmetric:
        zeros = unpack(tensor(zero_name).t(), scheme.bits).t()
    order = _input_order(f"{stem}.weight_g_idx", names, tensor, scales.shape[1])
    return _from_unsigned(codes, scales, zeros, scheme.bits, order, scheme.activations)


def unpack(packed: Int32[Tensor, "n words"], bits: int) -> UInt8[Tensor, "n codes"]:
    """The codes of int32 words, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (packed[..., None] >> shifts & (2**bits - 1)).flatten(1).to(torch.uint8)


def _from_unsigned(
    codes: UInt8[Tensor, "O I"],
    scales: Tensor,
    zeros: Integer[Tensor, "O G"],
    bits: int,
    order: Int[Tensor, "I"] | None = None,
    activations: str | None = None,
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
