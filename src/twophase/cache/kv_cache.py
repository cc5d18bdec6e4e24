"""The K/V tensors, plain or quantised. A page is a block's K or V in one layer: `block_size` slots."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from twophase.core.errors import ConfigError
from twophase.core.plan import BlockCopy
from twophase.memory import GIB, ROW_ALIGNMENT_BYTES, SCALE_BYTES, kv_bytes_per_token

KVFormat = Literal["none", "int8", "fp8_e4m3"]

# fp8 is kept as bits: the codec is integer arithmetic, so it runs on devices without fp8 types.
QUANTISED_DTYPES: dict[KVFormat, torch.dtype] = {"int8": torch.int8, "fp8_e4m3": torch.uint8}


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's pages: views of `KVCache`'s storage. Slot block * block_size + offset of KV head h is `k[block, h,
    offset]`.

    Attributes:
        k, v: In the cache's dtype; quantised: int8, or uint8 holding e4m3fn bits.
        k_scale, v_scale: One per token and head, value = data * scale; None unless quantised.
        group: The group of layers whose block tables it uses.
    """

    k: Shaped[Tensor, "N H_kv page D"]
    v: Shaped[Tensor, "N H_kv page D"]
    k_scale: Float[Tensor, "N H_kv page"] | None = None
    v_scale: Float[Tensor, "N H_kv page"] | None = None
    group: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The contents of a block, of `block_size` slots, a power of two. Raises ConfigError if rows of `head_dim` values
    are not a multiple of 16 bytes.

    Attributes:
        num_layers: Layers with a K and a V in each block: all, or a group's.
        dtype: K and V are read in this dtype, and stored in it unless `kv_format` quantises them.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    kv_format: KVFormat = "none"

    def __post_init__(self) -> None:
        row_bytes = self.head_dim * self.storage_dtype.itemsize
        if row_bytes % ROW_ALIGNMENT_BYTES:
            raise ConfigError(
                f"A row of head_dim values must be a multiple of {ROW_ALIGNMENT_BYTES} bytes so that kernels can use "
                f"16-byte loads; head_dim {self.head_dim} in {self.storage_dtype} is {row_bytes} bytes. "
                f"Store the cache in a wider dtype (kv_cache_dtype)."
            )

    @property
    def storage_dtype(self) -> torch.dtype:
        """The dtype of a stored K or V value."""
        return self.dtype if self.kv_format == "none" else QUANTISED_DTYPES[self.kv_format]

    @property
    def bytes_per_token(self) -> int:
        """K, V and their scales, in `num_layers` layers."""
        scale_bytes = 0 if self.kv_format == "none" else SCALE_BYTES
        value_bytes = self.storage_dtype.itemsize
        return kv_bytes_per_token(self.num_layers, self.num_kv_heads, self.head_dim, value_bytes, scale_bytes)

    @property
    def bytes_per_block(self) -> int:
        return self.block_size * self.bytes_per_token


def spec_from_option(
    kv_cache_dtype: str, *, num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, model_dtype: torch.dtype
) -> KVCacheSpec:
    """The spec for the user's `kv_cache_dtype`; 'auto' is the model's dtype. Raises as `KVCacheSpec`."""
    kv_format: KVFormat = next((name for name in QUANTISED_DTYPES if name == kv_cache_dtype), "none")
    is_plain = kv_format == "none" and kv_cache_dtype != "auto"
    dtype: torch.dtype = getattr(torch, kv_cache_dtype) if is_plain else model_dtype
    return KVCacheSpec(num_layers, num_kv_heads, head_dim, block_size, dtype, kv_format)


class KVCache:
    """`num_blocks` blocks for every layer of a model, or for the layers of any one group, allocated once, zeroed. The
    attention backend writes into `layers`. Raises ConfigError if the memory is not there.

    Args:
        pin_memory: On the CPU, memory that a GPU can read and write by itself.
        layout: For each layer its group, and its index in the group; None: all are in one group.

    Attributes:
        storage: K, V and their scales, [layers, num_blocks, ...] each.
        layers: Each layer's pages. Layers of the same index in different groups share pages, not blocks.
        num_groups: Groups of layers.
    """

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: int,
        device: torch.device,
        pin_memory: bool = False,
        layout: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        self.device = device
        shape = (spec.num_layers, num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim)
        self.storage = [_allocate(shape, spec.storage_dtype, device, pin_memory) for _ in range(2)]
        if spec.kv_format != "none":
            self.storage += [_allocate(shape[:-1], torch.float32, device, pin_memory) for _ in range(2)]
        layout = [(0, layer) for layer in range(spec.num_layers)] if layout is None else layout
        self.num_groups = 1 + max(group for group, _ in layout)
        self.layers = [LayerKV(*(tensor[index] for tensor in self.storage), group=group) for group, index in layout]

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks in every layer; no block is source of one copy and target of another, or target of two."""
        assert all(0 <= block < self.num_blocks for copy in copies for block in copy), f"{copies} of {self.num_blocks}"
        sources, targets = torch.tensor(copies, dtype=torch.int64, device=self.device).reshape(-1, 2).T
        for tensor in self.storage:
            tensor[:, targets] = tensor[:, sources]


def _allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, pin_memory: bool) -> Tensor:
    try:
        return torch.zeros(shape, dtype=dtype, device=device, pin_memory=pin_memory)
    except RuntimeError as error:  # torch.OutOfMemoryError on CUDA, plain RuntimeError on CPU
        size_gib = torch.Size(shape).numel() * dtype.itemsize / GIB
        raise ConfigError(
            f"Could not allocate {size_gib:.2f} GiB on {device} for the K/V cache (shape {list(shape)}, {dtype}). "
            f"Ask for fewer blocks (num_kv_blocks) or free some memory."
        ) from error
