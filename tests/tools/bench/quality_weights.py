"""Weights with fewer bits for the gate's tests, made without the engine's own quantisation."""

from dataclasses import replace

import torch

from twophase import LLM
from twophase.model.linear import TorchLinear, make_linear


def rounded(weight, bits, group=16):
    """To the nearest of 2^bits levels between the least and the largest weight of each group of a row; still floats."""
    groups = weight.float().unflatten(1, (-1, group))
    least = groups.amin(-1, keepdim=True)
    scale = ((groups.amax(-1, keepdim=True) - least) / (2**bits - 1)).clamp(min=1e-12)
    return (((groups - least) / scale).round() * scale + least).flatten(1).to(weight.dtype)


def plain_weight(linear: TorchLinear) -> torch.Tensor:
    """[O, I], whatever layout it lies in: what it makes of the identity."""
    return replace(linear, bias=None)(torch.eye(linear.weight.shape[1], dtype=linear.weight.dtype)).T


def with_rounded_weights(llm: LLM, bits, group=32) -> LLM:
    """The same object, its linear layers rounded. The embedding stays as it is, also where the head is the same."""

    def of(linear: TorchLinear) -> TorchLinear:
        return make_linear(rounded(plain_weight(linear).contiguous(), bits, group), linear.bias)

    def of_layer(layer):
        mlp = replace(layer.mlp, gate_up=of(layer.mlp.gate_up), down=of(layer.mlp.down))
        return replace(layer, qkv=of(layer.qkv), o=of(layer.o), mlp=mlp)

    weights = llm.model.weights
    llm.model.weights = replace(weights, layers=tuple(map(of_layer, weights.layers)), lm_head=of(weights.lm_head))
    return llm
