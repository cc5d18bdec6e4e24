"""Plain weights rounded to the nearest code, group by group."""

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.core.errors import ConfigError
from twophase_features.quantization.schemes import Scheme
from twophase_features.quantization.weight import QuantizedWeight

E4M3_MAX = 448.0


class NotFiniteError(ValueError):
    """A weight is infinite or NaN."""


def quantize(weight: Float[Tensor, "O I"], scheme: Scheme) -> QuantizedWeight:
    """Round to nearest.

    Symmetric: the scale puts the largest magnitude of a group on the last code on either side. Asymmetric: the smallest
    and the largest value of a group, and zero between them, are the first and the last code.

    Raises:
        ConfigError: I is not a multiple of the group size; names group sizes that divide I.
        NotFiniteError: A weight is infinite or NaN.
    """
    groups = weight.float().unflatten(1, (_num_groups(weight, scheme), -1))
    if not bool(groups.isfinite().all()):
        raise NotFiniteError("a weight that is not finite cannot be rounded to a code.")
    return _symmetric(groups, scheme) if scheme.is_symmetric else _asymmetric(groups, scheme)


def _num_groups(weight: Tensor, scheme: Scheme) -> int:
    num_inputs, size = weight.shape[1], scheme.group_size
    if size is None:
        return 1
    if num_inputs % size:
        raise ConfigError(
            f"quantization in groups of {size} does not divide a layer of {num_inputs} inputs; choose smaller groups "
            f"(int4 has 32), or int8, which has one scale per output."
        )
    return num_inputs // size


def _symmetric(groups: Float[Tensor, "O G S"], scheme: Scheme) -> QuantizedWeight:
    last = E4M3_MAX if scheme.is_float else 2 ** (scheme.bits - 1) - 1
    scales = _scales(groups.abs().amax(-1) / last)
    codes = groups / scales[..., None]
    codes = codes.to(torch.float8_e4m3fn) if scheme.is_float else codes.round_().to(torch.int8)
    return QuantizedWeight(codes.flatten(1), scales, None, scheme.bits, scheme.activations)


def _asymmetric(groups: Float[Tensor, "O G S"], scheme: Scheme) -> QuantizedWeight:
    last = 2**scheme.bits - 1
    lowest, highest = groups.amin(-1).clamp_(max=0), groups.amax(-1).clamp_(min=0)
    scales = _scales((highest - lowest) / last)
    middle = 2 ** (scheme.bits - 1) * scales  # kernels keep the value of the middle code, in 16 bits too
    minima = (lowest + middle).bfloat16().float() - middle
    codes = ((groups - minima[..., None]) / scales[..., None]).round_()
    return QuantizedWeight(codes.flatten(1).to(torch.int8), scales, minima, scheme.bits, scheme.activations)


def _scales(exact: Float[Tensor, "O G"]) -> Float[Tensor, "O G"]:
    """The scales in 16 bits, as kernels store them, before the division by them; 1 where all weights are zero. Their
    error is at most 1 in 512, so that no rounded code leaves its range: 127 becomes 127.25 at most.
    """
    scales = exact.bfloat16().float()
    return torch.where(scales > 0, scales, torch.ones_like(scales))
