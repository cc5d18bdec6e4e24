"""What `twophase bench kernels` measures: each kernel at serving sizes, with its rivals on the same data.

Rivals of the attention kernels get K and V contiguous and in their favourite order: they read no block table, ours
does. Sequences of a case have equal lengths, so that no rival pays for padding.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from twophase_kernels.kv_write import kv_write
from twophase_kernels.paged_decode import paged_decode
from twophase_kernels.paged_prefill import paged_prefill
from twophase_kernels.quant import KVFormat, cache_dtype
from twophase_kernels.rmsnorm_residual import rmsnorm_residual
from twophase_kernels.rope_kv_write import rope_kv_write, rope_reference
from twophase_kernels.silu_mul import silu_mul
from twophase_kernels.work import (
    Work,
    decode_work,
    kv_write_work,
    prefill_work,
    rmsnorm_residual_work,
    rope_kv_write_work,
    silu_mul_work,
)

OURS = "twophase"
SDPA_BACKENDS = {
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA cudnn": SDPBackend.CUDNN_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
    "SDPA math": SDPBackend.MATH,
}

# A variant computes the case once. Those that return a tensor are compared with ours; in-place writers return None.
Variant = Callable[[], Tensor | None]


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One row of the table.

    Attributes:
        kernel, label: What is measured, at which size.
        work: Least bytes and operations, whoever computes it.
        make_variants: Allocates the inputs and returns name -> variant, ours first.
        is_compute_bound: Whether arithmetic, not memory, is its roof.
        only_reads: Whether it writes next to nothing, so that reading, not copying, is its roof.
    """

    kernel: str
    label: str
    work: Work
    make_variants: Callable[[], dict[str, Variant]]
    is_compute_bound: bool = False
    only_reads: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """The table's dimensions. The defaults are Llama-3-8B's layer; `page` is slots per block."""

    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    intermediate: int = 14336
    page: int = 64
    decode_batches: tuple[int, ...] = (1, 8, 64)
    decode_keys: tuple[int, ...] = (1024, 8192, 32768)
    prefill_tokens: tuple[int, ...] = (1024, 4096, 16384)
    row_tokens: tuple[int, ...] = (64, 8192)

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)


FULL = Sizes()
QUICK = Sizes(4, 2, 64, 256, 512, 16, (1, 2), (48,), (32,), (8,))


@dataclass(frozen=True)
class CaseTable:
    """Builds the cases for one machine."""

    sizes: Sizes
    dtype: torch.dtype
    device: torch.device

    def __iter__(self) -> Iterator[KernelCase]:
        sizes = self.sizes
        for batch in sizes.decode_batches:
            for num_keys in sizes.decode_keys:
                yield self.decode(batch, num_keys)
        for kv_format in ("int8", "fp8_e4m3"):
            yield self.decode(sizes.decode_batches[-1], sizes.decode_keys[-1] // 4, kv_format)
        for num_tokens in sizes.prefill_tokens:
            yield self.prefill(num_tokens)
        for num_tokens in sizes.row_tokens:
            yield from (self.kv_write(num_tokens, kv_format) for kv_format in ("none", "int8", "fp8_e4m3"))
            yield self.rope_kv_write(num_tokens)
            yield self.rmsnorm_residual(num_tokens)
            yield self.silu_mul(num_tokens)

    # -- attention ----------------------------------------------------------------------------------------------------

    def decode(self, batch: int, num_keys: int, kv_format: KVFormat = "none") -> KernelCase:
        sizes = self.sizes
        heads = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
        itemsizes = self.dtype.itemsize, cache_dtype(kv_format, self.dtype).itemsize, 0 if kv_format == "none" else 4
        work = decode_work([num_keys] * batch, *heads, *itemsizes)

        def make_variants() -> dict[str, Variant]:
            q = self._randn(batch, sizes.num_heads, sizes.head_dim)
            seq_lens = torch.full((batch,), num_keys, dtype=torch.int32, device=self.device)
            if kv_format == "none":
                keys, values = (self._randn(batch, sizes.num_kv_heads, num_keys, sizes.head_dim) for _ in range(2))
                k, v, tables = self._pages(keys, values)
                rivals = _sdpa_and_flex(q[:, :, None], keys, values, sizes.scale, is_causal=False)
                scales: dict[str, Tensor] = {}
            else:
                k, v, tables, scales = self._quantised_pages(batch, num_keys, kv_format)
                rivals = {}

            def ours() -> Tensor:
                return paged_decode(q, k, v, tables, seq_lens, scale=sizes.scale, max_seq_len=num_keys, **scales)

            return {OURS: ours} | {name: _then(rival, lambda out: out[:, :, 0]) for name, rival in rivals.items()}

        suffix = "" if kv_format == "none" else f", {kv_format} cache"
        return KernelCase("paged_decode", f"B={batch}, {num_keys:,} keys{suffix}", work, make_variants, only_reads=True)

    def prefill(self, num_tokens: int) -> KernelCase:
        sizes, itemsize = self.sizes, self.dtype.itemsize
        heads = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
        work = prefill_work([num_tokens], [num_tokens], *heads, itemsize, itemsize)

        def make_variants() -> dict[str, Variant]:
            q = self._randn(num_tokens, sizes.num_heads, sizes.head_dim)
            keys, values = (self._randn(1, sizes.num_kv_heads, num_tokens, sizes.head_dim) for _ in range(2))
            k, v, tables = self._pages(keys, values)
            seq_lens = torch.tensor([num_tokens], dtype=torch.int32, device=self.device)
            cu_query_lens = torch.tensor([0, num_tokens], dtype=torch.int32, device=self.device)
            variants: dict[str, Variant] = {
                OURS: lambda: paged_prefill(
                    q, k, v, tables, seq_lens, cu_query_lens, max_query_len=num_tokens, scale=sizes.scale
                )
            }
            queries = q.transpose(0, 1)[None].contiguous()
            rivals = _sdpa_and_flex(queries, keys, values, sizes.scale, is_causal=True)
            return variants | {name: _then(rival, lambda out: out[0].transpose(0, 1)) for name, rival in rivals.items()}

        return KernelCase("paged_prefill", f"{num_tokens:,} tokens", work, make_variants, is_compute_bound=True)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def kv_write(self, num_tokens: int, kv_format: KVFormat) -> KernelCase:
        sizes = self.sizes
        stored = cache_dtype(kv_format, self.dtype)
        work = kv_write_work(num_tokens, sizes.num_kv_heads, sizes.head_dim, self.dtype.itemsize, stored.itemsize)

        def make_variants() -> dict[str, Variant]:
            new_k, new_v = (self._randn(num_tokens, sizes.num_kv_heads, sizes.head_dim) for _ in range(2))
            k, v, scales, slots = self._cache_to_write(num_tokens, kv_format)
            variants: dict[str, Variant] = {OURS: lambda: kv_write(new_k, new_v, k, v, slots, **scales)}
            if kv_format == "none":
                variants["torch index_put"] = _index_put(new_k, new_v, k, v, slots)
            return variants

        suffix = "" if kv_format == "none" else f", {kv_format} cache"
        return KernelCase("kv_write", f"{num_tokens:,} tokens{suffix}", work, make_variants)

    def rope_kv_write(self, num_tokens: int) -> KernelCase:
        sizes, itemsize = self.sizes, self.dtype.itemsize
        work = rope_kv_write_work(num_tokens, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, itemsize, itemsize)

        def make_variants() -> dict[str, Variant]:
            q = self._randn(num_tokens, sizes.num_heads, sizes.head_dim)
            new_k, new_v = (self._randn(num_tokens, sizes.num_kv_heads, sizes.head_dim) for _ in range(2))
            k, v, _, slots = self._cache_to_write(num_tokens, "none")
            positions = torch.arange(num_tokens, device=self.device)
            angles = positions[:, None] * 1e4 ** -torch.linspace(0, 1, sizes.head_dim // 2, device=self.device)
            cos, sin = angles.cos(), angles.sin()

            def rotate_and_put() -> Tensor:
                _index_put(rope_reference(new_k, cos, sin, positions), new_v, k, v, slots)()
                return rope_reference(q, cos, sin, positions)  # returned, or a compiler would leave it out

            return {
                OURS: lambda: _nothing(rope_kv_write(q, new_k, new_v, cos, sin, positions, slots, k, v)),
                "torch eager": rotate_and_put,
                "torch.compile": torch.compile(rotate_and_put),
            }

        return KernelCase("rope_kv_write", f"{num_tokens:,} tokens", work, make_variants)

    def rmsnorm_residual(self, num_tokens: int) -> KernelCase:
        work = rmsnorm_residual_work(num_tokens, self.sizes.hidden, self.dtype.itemsize)

        def make_variants() -> dict[str, Variant]:
            x, residual = (self._randn(num_tokens, self.sizes.hidden) for _ in range(2))
            weight = self._randn(self.sizes.hidden)

            def eager() -> tuple[Tensor, Tensor]:
                total = x + residual
                return F.rms_norm(total, (self.sizes.hidden,), weight, 1e-5), total

            return {
                OURS: lambda: rmsnorm_residual(x, residual, weight, 1e-5)[0],
                "torch eager": lambda: eager()[0],
                "torch.compile": _then(torch.compile(eager), lambda both: both[0]),
            }

        return KernelCase("rmsnorm_residual", f"{num_tokens:,} x {self.sizes.hidden:,}", work, make_variants)

    def silu_mul(self, num_tokens: int) -> KernelCase:
        width = self.sizes.intermediate
        work = silu_mul_work(num_tokens, width, self.dtype.itemsize)

        def make_variants() -> dict[str, Variant]:
            gate_up = self._randn(num_tokens, 2 * width)

            def eager() -> Tensor:
                return F.silu(gate_up[:, :width]) * gate_up[:, width:]

            return {OURS: lambda: silu_mul(gate_up), "torch eager": eager, "torch.compile": torch.compile(eager)}

        return KernelCase("silu_mul", f"{num_tokens:,} x {width:,}", work, make_variants)

    # -- inputs -------------------------------------------------------------------------------------------------------

    def _randn(self, *shape: int) -> Tensor:
        # Made on the device: the largest case holds 8 GiB. Random, because zeros run faster than real data.
        return torch.randn(*shape, dtype=self.dtype, device=self.device)

    def _tables(self, batch: int, num_keys: int) -> Tensor:
        """Block tables whose pages are scattered over the pool at random, as they are after an hour of serving."""
        per_seq = -(-num_keys // self.sizes.page)
        order = torch.randperm(batch * per_seq, device=self.device, dtype=torch.int32).view(batch, per_seq)
        return F.pad(order, (0, -per_seq % 16))

    def _pages(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, H_kv, S, D] twice, S a multiple of the page, as scattered pages with their block tables."""
        batch, num_kv_heads, num_keys, head_dim = keys.shape
        page = self.sizes.page
        tables = self._tables(batch, num_keys)
        block_ids = tables[:, : num_keys // page].reshape(-1).long()
        caches = []
        for dense in (keys, values):
            pages = dense.view(batch, num_kv_heads, num_keys // page, page, head_dim).transpose(1, 2)
            cache = torch.empty(len(block_ids), num_kv_heads, page, head_dim, dtype=self.dtype, device=self.device)
            cache[block_ids] = pages.reshape(cache.shape)
            caches.append(cache)
        return caches[0], caches[1], tables

    def _quantised_pages(
        self, batch: int, num_keys: int, kv_format: KVFormat
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Random codes and scales: what they decode to does not change the time."""
        tables = self._tables(batch, num_keys)
        shape = (batch * -(-num_keys // self.sizes.page), self.sizes.num_kv_heads, self.sizes.page, self.sizes.head_dim)
        stored = cache_dtype(kv_format, self.dtype)
        k, v = (torch.randint(0, 100, shape, dtype=stored, device=self.device) for _ in range(2))
        scales = {name: torch.rand(shape[:3], device=self.device) / 100 for name in ("k_scale", "v_scale")}
        return k, v, tables, scales

    def _cache_to_write(self, num_tokens: int, kv_format: KVFormat) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
        """An empty cache, and slots for the tokens in whole pages that are scattered over it."""
        sizes = self.sizes
        num_pages = -(-num_tokens // sizes.page)
        shape = (num_pages, sizes.num_kv_heads, sizes.page, sizes.head_dim)
        k, v = (torch.zeros(shape, dtype=cache_dtype(kv_format, self.dtype), device=self.device) for _ in range(2))
        scales = {}
        if kv_format != "none":
            scales = {name: torch.zeros(shape[:3], device=self.device) for name in ("k_scale", "v_scale")}
        pages = torch.randperm(num_pages, device=self.device)
        slots = pages[:, None] * sizes.page + torch.arange(sizes.page, device=self.device)
        return k, v, scales, slots.reshape(-1)[:num_tokens]


def _sdpa_and_flex(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, is_causal: bool
) -> dict[str, Callable[[], Tensor]]:
    """torch's attentions over [B, H, L, D] and [B, H_kv, S, D]: each SDPA backend forced, then FlexAttention."""

    def sdpa(backend: SDPBackend) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=True)

        return call

    def flex() -> Tensor:
        return compiled(q, k, v, block_mask=mask, scale=scale, enable_gqa=True)

    # A lambda: torch counts the arguments of what it gets, and the tests' type checker wraps functions.
    causal = lambda batch, head, query, key: query >= key  # noqa: E731
    compiled = torch.compile(flex_attention, dynamic=False)
    length = q.shape[2]
    mask = create_block_mask(causal, None, None, length, length, device=str(q.device)) if is_causal else None
    return {name: sdpa(backend) for name, backend in SDPA_BACKENDS.items()} | {"FlexAttention": flex}


def _index_put(new_k: Tensor, new_v: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> Callable[[], None]:
    page = k.shape[2]

    def put() -> None:
        blocks, offsets = slots // page, slots % page
        k[blocks, :, offsets] = new_k
        v[blocks, :, offsets] = new_v

    return put


def _then(function: Callable[[], object], view: Callable[..., Tensor]) -> Variant:
    return lambda: view(function())


def _nothing(_: object) -> None:
    """For variants whose output must not be compared: they change their own inputs from call to call."""
