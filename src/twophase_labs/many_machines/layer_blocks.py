"""Small pools of K/V for checks: a sequence scattered over blocks, and poison in every slot that is not its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twophase.cache.kv_cache import LayerKV
from twophase_labs.machine.checks import Draw

POISON = 99  # fits int8 as well


@dataclass(frozen=True)
class Heads:
    """KV heads of a layer, and the elements of each."""

    num: int
    dim: int


def random_heads(draw: Draw) -> Heads:
    return Heads(draw.integer(4, 9), draw.integer(2, 9))


def empty_layer(heads: Heads, num_blocks: int, block_size: int, quantised: bool) -> LayerKV:
    """One layer's blocks, full of poison."""
    shape = (num_blocks, heads.num, block_size, heads.dim)
    k, v = (torch.full(shape, POISON, dtype=torch.int8 if quantised else torch.float32) for _ in range(2))
    if not quantised:
        return LayerKV(k, v)
    return LayerKV(k, v, *(torch.full(shape[:-1], float(POISON)) for _ in range(2)))


def stored(layer: LayerKV) -> list[Tensor]:
    """What a layer stores: K and V, and their scales where there are any."""
    return [part for part in (layer.k, layer.v, layer.k_scale, layer.v_scale) if part is not None]


def token_rows(draw: Draw, heads: Heads, num_tokens: int, quantised: bool) -> list[Tensor]:
    """What each token has in one layer: K and V [T, H_kv, D], quantised also their scales [T, H_kv]."""
    shape = (num_tokens, heads.num, heads.dim)
    if not quantised:
        return [draw.normal(*shape), draw.normal(*shape)]
    return [*(draw.integers(-90, 90, *shape).to(torch.int8) for _ in range(2)), draw.uniform(*shape[:-1]),
            draw.uniform(*shape[:-1])]  # fmt: skip


def place(layer: LayerKV, block_ids: Sequence[int], rows: Sequence[Tensor]) -> None:
    """Write a sequence into its blocks, slot by slot."""
    block_size = layer.k.shape[2]
    for blocks, values in zip(stored(layer), rows, strict=True):
        for position, value in enumerate(values):
            blocks[block_ids[position // block_size], :, position % block_size] = value


def random_blocks(draw: Draw, num_tokens: int, block_size: int, num_blocks: int) -> list[int]:
    """As many blocks as the tokens need, in no order, the pool's last one among them."""
    num_needed = -(-num_tokens // block_size)
    ids = draw.permutation(num_blocks - 1)[:num_needed].tolist()
    ids[draw.integer(0, num_needed)] = num_blocks - 1
    return ids
