"""Memory of K/V blocks, free memory, and the number of blocks that fit. Imports nothing heavy, for `twophase plan`."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from twophase.core.errors import ConfigError
from twophase.model.config import ModelConfig

if TYPE_CHECKING:
    import torch

GIB = 1024**3
SCALE_BYTES = 4  # bytes of a scale, one for each token and head, for K and for V: float32
ROW_ALIGNMENT_BYTES = 16  # GPUs load 16 bytes at a time, and Triton does so only when every row starts at a multiple
MLP_UNIT = 16  # ranks split the MLP in units of 16 rows, so that each rank's part starts at a multiple of 16 bytes

# A GPU serves only the engine; a CPU's memory is shared by all processes, and 2 GiB hold 46,000 tokens of the default
# model.
DEFAULT_KV_MEMORY_FRACTION = {"cpu": 0.25, "cuda": 0.9}
DEFAULT_CPU_KV_BYTES = 2 * GIB


# -- memory that the parts take


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, value_bytes: int, scale_bytes: int) -> int:
    """K, V and their scales of a token, in all layers. `scale_bytes` is 0 unless they are quantised."""
    return 2 * num_layers * num_kv_heads * (head_dim * value_bytes + scale_bytes)


def check_rope_tables(model: ModelConfig, num_positions: int) -> None:
    """Raises ConfigError if this machine has too little memory for RoPE tables of `num_positions` positions."""
    # Angles, sines and cosines: an fp32 value for each pair of a head (`rope_tables` in model/llama.py).
    num_tables, free = 1 if model.local_rope is None else 2, free_host_memory_bytes()
    in_tables = num_tables * 3 * 4 * num_positions * (model.head_dim // 2)
    if in_tables > free:
        raise ConfigError(
            f"RoPE tables for {num_positions:,} positions need {in_tables / GIB:,.1f} GiB, but only "
            f"{free / GIB:,.1f} GiB of host memory is free; pass a smaller max_model_len."
        )


# -- free memory


def free_memory_bytes(device: "torch.device") -> int:
    """Bytes that can still be allocated on `device`; for anything but CUDA, of the host's memory."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    return free_host_memory_bytes()


def free_host_memory_bytes(root: Path = Path("/")) -> int:
    """Host memory available without swapping, within the container's limit (cgroup v2). `root` is for tests."""
    # Linux's own estimate for new allocations, page cache included (proc(5)), in KiB; elsewhere half of all memory.
    available = 1024 * _read_fields(root / "proc/meminfo").get("MemAvailable:", 0)
    free = available or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    cgroup = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):  # no such file, or 'max': no limit
        limit, usage = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        # Inactive file pages are released under memory pressure, so they count as free.
        free = min(free, max(0, limit - usage + _read_fields(cgroup / "memory.stat").get("inactive_file", 0)))
    return free


def _read_fields(path: Path) -> dict[str, int]:
    """`name number ...` lines as a dict; empty if the file can't be read."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) >= 2 and words[1].isdigit()}


def num_blocks_that_fit(
    bytes_per_block: int, device: "torch.device", fraction: float | None = None, reserved_bytes: int = 0
) -> int:
    """The number of blocks that fill a share of the memory free on `device` now. Raises ConfigError if it is 0.

    Args:
        bytes_per_block: Bytes of a block, including the draft model's block if there is one.
        fraction: The share to fill; None: the default for the device, and at most 2 GiB of a CPU's memory.
        reserved_bytes: Bytes to keep for a step and for graphs (twophase_features.start_up).
    """
    share = fraction or DEFAULT_KV_MEMORY_FRACTION[device.type]
    free_bytes = max(0, free_memory_bytes(device) - reserved_bytes)
    num_blocks = int(free_bytes * share) // bytes_per_block
    if num_blocks < 1:
        raise ConfigError(
            f"One block takes {bytes_per_block:,} bytes, but {share:.0%} of the {free_bytes / GIB:.2f} GiB "
            f"free on {device} (with {reserved_bytes / GIB:.2f} GiB kept for a step and graphs) is "
            f"{int(free_bytes * share):,}. Free some memory, or use a smaller block_size, a smaller "
            f"max_num_batched_tokens or a quantised kv_cache_dtype."
        )
    if fraction is None and device.type == "cpu":
        return min(num_blocks, max(1, DEFAULT_CPU_KV_BYTES // bytes_per_block))
    return num_blocks
