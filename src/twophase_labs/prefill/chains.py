"""Chains of small operations between the matrix products of a layer: what each step reads and writes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from twophase_labs.prefill.model_shape import ModelShape

Steps = Sequence[tuple[Sequence[str], str]]


@dataclass(frozen=True)
class Chain:
    """`steps` are (inputs, output) by name, in order; `sizes` has the elements of each name; `kept` is needed after."""

    steps: Steps
    sizes: Mapping[str, int]
    kept: Collection[str]


def chains_of(shape: ModelShape, num_tokens: int) -> dict[str, Chain]:
    """The three chains of a Llama-like layer, as eager PyTorch would run them on so many tokens."""
    rows, width = num_tokens, shape.hidden
    heads, kv_heads = (n * shape.head_dim for n in (shape.num_heads, shape.num_kv_heads))
    norm = Chain(
        (
            (("x", "residual"), "h"),
            (("h",), "squares"),
            (("squares",), "means"),
            (("means",), "shifted"),
            (("shifted",), "roots"),
            (("h", "roots"), "scaled"),
            (("scaled", "weight"), "y"),
        ),
        dict.fromkeys(("x", "residual", "h", "squares", "scaled", "y"), rows * width)
        | {"means": rows, "shifted": rows, "roots": rows, "weight": width},
        ("h", "y"),
    )
    rope = Chain(
        (
            *(step for x in "qk" for step in _rotation(x)),
            (("k_turned",), "k_cache"),
            (("v",), "v_cache"),
        ),
        {f"q{part}": rows * heads for part in PARTS}
        | {f"k{part}": rows * kv_heads for part in PARTS}
        | dict.fromkeys(("v", "k_cache", "v_cache"), rows * kv_heads)
        | {"cos": rows * shape.head_dim, "sin": rows * shape.head_dim},
        ("q_turned", "k_cache", "v_cache"),
    )
    gate = Chain(
        ((("gate",), "sigmoid"), (("gate", "sigmoid"), "silu"), (("silu", "up"), "out")),
        dict.fromkeys(("gate", "up", "sigmoid", "silu", "out"), rows * shape.mlp),
        ("out",),
    )
    return {"residual + RMSNorm": norm, "RoPE + write to cache": rope, "SiLU x up": gate}


PARTS = ("", "_cos", "_swapped", "_sin", "_turned")


def _rotation(x: str) -> Steps:
    return (
        ((x, "cos"), f"{x}_cos"),
        ((x,), f"{x}_swapped"),
        ((f"{x}_swapped", "sin"), f"{x}_sin"),
        ((f"{x}_cos", f"{x}_sin"), f"{x}_turned"),
    )


def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: int | float) -> tuple[Tensor, Tensor]:
    """(y, h), step by step."""
    h = x + residual
    squares = h * h
    means = squares.mean(-1, keepdim=True)
    shifted = means + eps
    roots = shifted.rsqrt()
    scaled = h * roots
    return scaled * weight, h


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    sigmoid = gate.sigmoid()
    silu = gate * sigmoid
    return silu * up


def silu_mul_by_rows(gate: Tensor, up: Tensor, num_rows: int) -> Tensor:
    """The same three operations on so few rows at a time that what is between them stays in a CPU's cache."""
    out = torch.empty_like(gate)
    for g, u, o in zip(gate.split(num_rows), up.split(num_rows), out.split(num_rows), strict=True):
        torch.mul(g.sigmoid().mul_(g), u, out=o)
    return out


class _Noting(TorchDispatchMode):
    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = {x.data_ptr(): x.nbytes for x in args if isinstance(x, Tensor)}
        self.num_bytes += sum(read.values()) + result.nbytes
        return result


def noted_bytes(call: Callable[[], object]) -> int:
    """Bytes of the tensors that each operation of a call was given, plus those of its result."""
    with _Noting() as noting:
        call()
    return noting.num_bytes
