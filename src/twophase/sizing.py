"""How much memory things take, in bytes, and how many blocks fit: the same arithmetic for the engine, which has just
loaded its weights, and for the planner, which has loaded nothing."""

from collections.abc import Sequence

import torch

from twophase.cache.kv_cache import KVCacheSpec, num_blocks_that_fit
from twophase.cache.memory import GIB, free_host_memory_bytes
from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.core.sizes import activation_bytes
from twophase.model.config import ModelConfig
from twophase.scheduling.config import SchedulerConfig
from twophase_features.windows.sliding_window import SlidingWindow

# A prefill chunk delays the decodes beside it: about a second at these sizes on a CPU, a few milliseconds on a GPU.
DEFAULT_BATCHED_TOKENS = {"cpu": 512, "cuda": 8192}
# A GPU serves nothing else; a CPU's memory belongs to everyone, and 2 GiB hold 46,000 tokens of the default model.
DEFAULT_KV_MEMORY_FRACTION = {"cpu": 0.25, "cuda": 0.9}
DEFAULT_CPU_KV_BYTES = 2 * GIB


def limits_of(config: EngineConfig, model: ModelConfig, device: torch.device) -> SchedulerConfig:
    """The scheduler's limits, with defaults for what is None.

    Raises:
        ConfigError: A limit that cannot work, or more tokens than the model has positions.
    """
    longest = model.max_position_embeddings
    max_model_len = longest if config.max_model_len is None else config.max_model_len
    if not 2 <= max_model_len <= longest:
        raise ConfigError(
            f"max_model_len must leave room for a prompt and an output token and not exceed the model's "
            f"max_position_embeddings, so be in [2, {longest}], got {max_model_len}."
        )
    budget = config.max_num_batched_tokens
    if budget is None:
        whole = 0 if config.enable_chunked_prefill else max_model_len
        budget = max(DEFAULT_BATCHED_TOKENS[device.type], config.max_num_seqs, whole)
    return SchedulerConfig(
        config.max_num_seqs,
        budget,
        max_model_len,
        config.enable_chunked_prefill,
        watermark=config.admission_watermark,
        admission=config.admission,
    )


def rope_table_bytes(model: ModelConfig, num_positions: int) -> int:
    """Of angles, sines and cosines together: fp32, a number for each pair of a head (see model/rope.py)."""
    num_tables = 1 if model.local_rope is None else 2
    return num_tables * 3 * 4 * num_positions * (model.head_dim // 2)


def check_rope_tables(model: ModelConfig, num_positions: int) -> None:
    """Asked before a model is loaded; the simulator, which loads none, has no need to.

    Raises:
        ConfigError: This machine has too little memory for tables of so many positions.
    """
    in_tables, free = rope_table_bytes(model, num_positions), free_host_memory_bytes()
    if in_tables > free:
        raise ConfigError(
            f"the rotary tables of {num_positions:,} positions take {in_tables / GIB:,.1f} GiB to make, and "
            f"{free / GIB:,.1f} GiB of the host's memory are free; pass a smaller max_model_len."
        )


def default_num_blocks(
    spec: KVCacheSpec,
    device: torch.device,
    fraction: float | None,
    limits: SchedulerConfig,
    window: SlidingWindow | None = None,
    draft_bytes_per_block: int = 0,
    reserved_bytes: int = 0,
    sees_all: Sequence[bool] = (False,),
) -> int:
    """Blocks in a pool whose size was not given: a fraction of free memory, and no more than could ever be used.

    With a window that is what each sequence keeps, and a step's tokens, which are written before blocks are freed.
    Groups of layers have blocks of their own.

    Args:
        draft_bytes_per_block: What a draft model's cache takes besides.
        reserved_bytes: What a step needs besides (`step_bytes`).
        sees_all: For each group of layers, whether its queries see all keys in spite of the window.
    """
    whole = local = limits.max_num_seqs * -(-limits.max_model_len // spec.block_size)
    if window is not None:
        kept = limits.max_num_seqs * window.max_blocks(spec.block_size)
        local = min(whole, kept + -(-limits.max_num_batched_tokens // spec.block_size))
    useful = sum(whole if is_full else local for is_full in sees_all)
    fitting = num_blocks_that_fit(spec, device, fraction or DEFAULT_KV_MEMORY_FRACTION[device.type], reserved_bytes)
    if fraction is None and device.type == "cpu":
        fitting = min(fitting, max(1, DEFAULT_CPU_KV_BYTES // spec.bytes_per_block))
    fitting = max(1, fitting * spec.bytes_per_block // (spec.bytes_per_block + draft_bytes_per_block))
    return min(useful, fitting)


def step_bytes(model: ModelConfig, limits: SchedulerConfig, dtype: torch.dtype) -> int:
    """What the largest step may need besides weights and K/V; `model` is this rank's part."""
    return activation_bytes(model, limits.max_num_batched_tokens, limits.max_num_seqs, dtype.itemsize)
