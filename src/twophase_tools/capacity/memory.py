"""Bytes on one GPU: what is taken, what is left for K/V, and how many requests that holds."""

from dataclasses import dataclass, replace

from twophase.memory import MLP_UNIT
from twophase_features.step_memory import activation_bytes
from twophase_tools.capacity.config import PlanConfig
from twophase_tools.simulate.model_shapes import ModelShape


def even_shape(shape: ModelShape, num_gpus: int) -> ModelShape:
    """`shape` with heads, MLP, experts and vocabulary rounded up to what `num_gpus` can share evenly.

    The GPU with most of them sets the memory and the pace, so the whole costs as much as if all had as many:
    3 K/V heads on 2 GPUs cost as 4 do.
    """

    def up(count: int, unit: int = 1) -> int:
        return -(-count // (unit * num_gpus)) * unit * num_gpus

    def units(intermediate_size: int) -> int:
        return up(intermediate_size, 1 if intermediate_size % MLP_UNIT else MLP_UNIT)

    num_kv_heads, group_size = up(shape.num_kv_heads), shape.num_heads // shape.num_kv_heads
    experts = shape.experts
    if experts is not None:
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


def weight_bytes(shape: ModelShape, num_gpus: int) -> int:
    """What a GPU has to store, as the engine does: its share of the layers, the whole embedding and all norms. Biases
    are not counted: they are one in ten thousand."""
    even = replace(even_shape(shape, num_gpus), vocab_size=shape.vocab_size)
    norms = (2 * shape.num_layers + 1) * shape.hidden_size + shape.qk_norm * 2 * shape.num_layers * shape.head_dim
    return even.memory_bytes_on(num_gpus) + norms * shape.value_bytes


def workspace_bytes(shape: ModelShape, num_gpus: int, num_tokens: int, num_rows: int) -> int:
    """What the engine keeps free on each GPU for a step of so many tokens; see `activation_bytes`. Not measured.

    Args:
        shape: Even (see `even_shape`).
        num_rows: That are sampled. Every GPU has all of their logits, and has room for them.
    """
    experts = shape.experts
    if experts is not None:
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


def memory_table(config: PlanConfig) -> MemoryTable:
    n, total = config.tensor_parallel_size, int(config.hardware.memory_bytes)
    shape = even_shape(config.shape, n)
    workspace = config.workspace
    if workspace is None:
        num_tokens = max(config.step_tokens, config.max_num_seqs)
        sampling = replace(shape, vocab_size=config.shape.vocab_size)  # all of the vocabulary, not the largest share
        workspace = workspace_bytes(sampling, n, num_tokens, config.max_num_seqs)
    return MemoryTable(
        total_bytes=total,
        headroom_bytes=total - int(total * config.gpu_memory_utilization),
        weight_bytes=weight_bytes(config.shape, n),
        workspace_bytes=workspace,
        kv_bytes_per_token=shape.kv_bytes_per_token // n,
        block_size=config.block_size,
    )


def blocks_of(num_tokens: int, block_size: int) -> int:
    """Blocks that a sequence of this length holds."""
    return -(-num_tokens // block_size)


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
    """Requests of `num_tokens` tokens each; `num_bytes` counts all GPUs."""
    num_blocks = blocks_of(num_tokens, config.block_size)
    return Fit(
        num_tokens=num_tokens,
        num_blocks=num_blocks,
        num_bytes=num_blocks * table.block_bytes * config.tensor_parallel_size,
        num_requests=table.num_blocks // num_blocks,
    )
