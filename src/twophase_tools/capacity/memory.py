"""Bytes on one GPU: what is taken, what is left for K/V, and how many requests that holds."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from twophase.memory import MLP_UNIT
from twophase_features.quantization.schemes import Scheme
from twophase_features.step_memory import activation_bytes
from twophase_features.windows.sliding_window import SlidingWindow
from twophase_tools.capacity.config import Eviction, PlanConfig
from twophase_tools.simulate.model_shapes import ModelShape

if TYPE_CHECKING:
    import torch


def even_shape(shape: ModelShape, num_gpus: int, whole_experts: bool = False) -> ModelShape:
    """`shape` with heads, MLP, experts and vocabulary rounded up to what `num_gpus` can share evenly. Of whole experts
    all have equally many.

    The GPU with most of them sets the memory and the pace, so the whole costs as much as if all had as many:
    3 K/V heads on 2 GPUs cost as 4 do.
    """

    def up(count: int, unit: int = 1) -> int:
        return -(-count // (unit * num_gpus)) * unit * num_gpus

    num_kv_heads, group_size = up(shape.num_kv_heads), shape.num_heads // shape.num_kv_heads

    def units(intermediate_size: int) -> int:
        return up(intermediate_size, 1 if intermediate_size % MLP_UNIT else MLP_UNIT)

    experts = shape.experts
    if experts is not None and not whole_experts:
        experts = replace(experts, intermediate_size=units(experts.intermediate_size))
    return replace(
        shape,
        # Query heads are where their K/V head is; with more GPUs than those, each K/V head has copies.
        num_heads=num_kv_heads * group_size if num_gpus <= shape.num_kv_heads else up(shape.num_heads),
        num_kv_heads=num_kv_heads,
        intermediate_size=units(shape.intermediate_size),
        experts=experts,
        vocab_size=up(shape.vocab_size),
    )


def weight_bytes(shape: ModelShape, num_gpus: int, whole_experts: bool = False) -> int:
    """What a GPU has to store, as the engine does: its share of the layers, the whole embedding and all norms. Biases
    are not counted: they are one in ten thousand."""
    even = replace(even_shape(shape, num_gpus, whole_experts), vocab_size=shape.vocab_size)
    return even.memory_bytes_on(num_gpus) + _norm_values(shape) * shape.value_bytes


def host_layer_bytes(
    scheme: Scheme | None, num_outputs: int, num_inputs: int, dtype: "torch.dtype", keeps_plain: bool = True
) -> int:
    """Bytes of a CPU layer with such a weight, computed without the weight. Without a scheme: plain."""
    import torch

    from twophase.model.linear import can_pack
    from twophase_features.quantization.linear import suits_int4_operator

    values = num_outputs * num_inputs
    if scheme is None:
        return values * dtype.itemsize
    if scheme.activations == "int8":
        return values + num_outputs * torch.float32.itemsize
    in_plain = values * (dtype if can_pack(dtype) else torch.float32).itemsize
    group_size = scheme.group_size or num_inputs
    if dtype == torch.bfloat16 and suits_int4_operator(scheme.bits, group_size, num_outputs):
        scales_and_middles = 2 * values // group_size * dtype.itemsize
        return values // 2 + scales_and_middles + (in_plain if keeps_plain else 0)
    return in_plain


def host_weight_bytes(shape: ModelShape, dtype: "torch.dtype", keeps_plain: bool) -> int:
    """What an engine on a CPU has to store, which is not what a GPU does: a CPU multiplies few formats as they are and
    makes the others plain when it loads them, and lays out an output projection anew even if it is the embedding.

    Args:
        shape: The embedding has `value_bytes`, which are the file's.
        dtype: Of the activations, and of plain layers.
        keeps_plain: Whether layers in 4 bits have a plain copy besides, for steps of many rows.
    """

    def layer(num_outputs: int, num_inputs: int) -> int:
        return host_layer_bytes(shape.scheme, num_outputs, num_inputs, dtype, keeps_plain)

    def mlp(intermediate_size: int) -> int:
        return layer(2 * intermediate_size, shape.hidden_size) + layer(shape.hidden_size, intermediate_size)

    heads, kv_heads = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = layer(heads + 2 * kv_heads, shape.hidden_size) + layer(shape.hidden_size, heads)
    experts, num_sparse = shape.experts, 0 if shape.experts is None else len(shape.experts.sparse_layers)
    of_mlps = (shape.num_layers - num_sparse) * mlp(shape.intermediate_size)
    if experts is not None:
        of_mlps += num_sparse * experts.num_experts * mlp(experts.intermediate_size)
    head = host_layer_bytes(shape.head_scheme, shape.vocab_size, shape.hidden_size, dtype, keeps_plain)
    embedding = shape.output_params * min(dtype.itemsize, shape.value_bytes)
    others = shape.router_params + _norm_values(shape)
    return shape.num_layers * attention + of_mlps + head + embedding + others * dtype.itemsize


def _norm_values(shape: ModelShape) -> int:
    return (2 * shape.num_layers + 1) * shape.hidden_size + shape.qk_norm * 2 * shape.num_layers * shape.head_dim


def workspace_bytes(
    shape: ModelShape, num_gpus: int, num_tokens: int, num_rows: int, whole_experts: bool = False
) -> int:
    """What the engine keeps free on each GPU for a step of so many tokens; see `activation_bytes`. Not measured.

    Args:
        shape: Even (see `even_shape`).
        num_rows: That are sampled. Every GPU has all of their logits, and has room for them.
    """
    experts = shape.experts
    if experts is not None and not whole_experts:
        experts = replace(experts, intermediate_size=experts.intermediate_size // num_gpus)
    rank = replace(
        shape,
        experts=experts,
        num_heads=shape.num_heads // num_gpus,
        num_kv_heads=-(-shape.num_kv_heads // num_gpus),
        intermediate_size=shape.intermediate_size // num_gpus,
    )
    return activation_bytes(rank, num_tokens, num_rows, shape.value_bytes)


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Bytes on each GPU; on the fullest, where they cannot share evenly.

    Attributes:
        headroom_bytes: Left alone: CUDA's own context, captured graphs, fragments.
        pool_bytes: For K/V; negative: the rest does not fit.
        block_bytes: The share of a block that a GPU holds.
        num_blocks: Whole blocks in the pool.
    """

    total_bytes: int
    headroom_bytes: int
    weight_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: int
    block_size: int

    @property
    def pool_bytes(self) -> int:
        return self.total_bytes - self.headroom_bytes - self.weight_bytes - self.workspace_bytes

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.kv_bytes_per_token

    @property
    def num_blocks(self) -> int:
        return max(0, self.pool_bytes // self.block_bytes)


def memory_table(config: PlanConfig, num_gpus: int | None = None) -> MemoryTable:
    """For the config's GPUs, or another number of them."""
    n = num_gpus or config.tensor_parallel_size
    whole_experts = config.enable_expert_parallel
    shape, total = even_shape(config.shape, n, whole_experts), int(config.hardware.memory_bytes)
    workspace = config.workspace_bytes
    if workspace is None:
        num_tokens = max(config.step_tokens, config.max_num_seqs)
        sampling = replace(shape, vocab_size=config.shape.vocab_size)  # all of the vocabulary, not the largest share
        workspace = workspace_bytes(sampling, n, num_tokens, config.max_num_seqs, whole_experts)
    return MemoryTable(
        total_bytes=total,
        headroom_bytes=total - int(total * config.gpu_memory_utilization),
        weight_bytes=weight_bytes(config.shape, n, whole_experts),
        workspace_bytes=workspace,
        kv_bytes_per_token=shape.kv_bytes_per_token // n,
        block_size=config.block_size,
    )


def blocks_of(num_tokens: int, block_size: int, eviction: Eviction | None = None) -> int:
    """Blocks that a sequence of this length holds.

    With eviction it keeps those of its sinks and of its window, whose first token may be a block's last one:
    a window of 18 in blocks of 16 can lie in 3 of them.
    """
    num_blocks = -(-num_tokens // block_size)
    if eviction is None:
        return num_blocks
    return min(num_blocks, SlidingWindow(eviction.window, eviction.num_sinks).max_blocks(block_size))


@dataclass(frozen=True, slots=True)
class Fit:
    """Requests of one length in the pool at once.

    Attributes:
        num_blocks: Of each, at its end.
        num_requests: That fit, all at their end, so that none is ever preempted.
    """

    num_tokens: int
    num_blocks: int
    num_bytes: int
    num_requests: int


def fit(config: PlanConfig, table: MemoryTable, num_tokens: int) -> Fit:
    """Requests of `num_tokens` tokens each; `num_bytes` counts all GPUs.

    With eviction a prompt's chunk is written before the blocks that it pushes out of the window are freed, so room for
    one step's tokens is set aside.
    """
    num_blocks = blocks_of(num_tokens, config.block_size, config.eviction)
    is_cut = num_blocks < blocks_of(num_tokens, config.block_size)
    aside = math.ceil(config.step_tokens / config.block_size) if is_cut else 0
    return Fit(
        num_tokens=num_tokens,
        num_blocks=num_blocks,
        num_bytes=num_blocks * table.block_bytes * config.tensor_parallel_size,
        num_requests=max(0, table.num_blocks - aside) // num_blocks,
    )
