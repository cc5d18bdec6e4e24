"""What `twophase bench kernels` measures: each kernel at serving sizes, with its rivals on the same data.

torch's attention reads no block table: it gets K and V contiguous.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from twophase_kernels.attend_range import paged_attention_reference
from twophase_kernels.gpu import gpu_generation
from twophase_kernels.paged_decode import max_rows, paged_decode
from twophase_kernels.paged_prefill import paged_prefill
from twophase_kernels.paged_prefill_tma import PAGE, paged_prefill_tma
from twophase_kernels.quant import KVFormat, cache_dtype
from twophase_kernels.rmsnorm_residual import rmsnorm_residual
from twophase_kernels.rope_kv_write import rope_kv_write, rope_kv_write_reference, rope_reference
from twophase_kernels.silu_mul import silu_mul
from twophase_tools.bench.kernel_linears import Layer
from twophase_tools.bench.kernel_rivals import AttentionBatch, attention_rivals
from twophase_tools.bench.kernel_variants import OURS, REFERENCE, KernelCase, MakeVariant, Variant, compiled
from twophase_tools.bench.kernel_work import (
    Work,
    attention_work,
    rmsnorm_residual_work,
    rope_kv_write_work,
    silu_mul_work,
)

# Of a row, relative. Two right answers differ by a few roundings of the dtype; leaving out the mask, a head or the last
# page changes a row by more.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
QUANTISED_WRITE_TOLERANCE = 1e-2  # a value halfway between two codes may become either


@dataclass(frozen=True, slots=True)
class Sizes:
    """The table's dimensions. The defaults are Llama-3-8B's layer; `page` is slots per block.

    Attributes:
        ragged_decodes: What it is like, and the sequences' lengths.
        chunks: (tokens to compute, tokens with those before) per sequence of a mixed batch of chunks.
        verified: The same for the tokens that a draft model proposed after a long context.
        linear_tokens: Tokens per product with a weight of fewer bits.
        linear_group: Columns of a weight of 4 bits that share a scale.
    """

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
    ragged_decodes: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("one long beside short", (32768, *[512] * 63)),
        # As many between 256 and 512 as between 8,192 and 16,384, in no order (37 and 64 have no common divisor).
        ("mixed lengths", tuple(round(256 * 64 ** (37 * i % 64 / 63)) for i in range(64))),
    )
    chunks: tuple[tuple[int, int], ...] = ((2048, 2048), (1024, 8192), (512, 700), (300, 4096), (1, 6000), (1, 130))
    verified: tuple[int, int] = (5, 32768)
    linear_tokens: tuple[int, ...] = (1, 16, 64)
    linear_group: int = 128

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)


FULL = Sizes()
QUICK = Sizes(
    4, 2, 64, 256, 512, 16, (1, 2), (48,), (32,), (8,),
    ragged_decodes=(("one long beside short", (96, 5, 17)), ("mixed lengths", (3, 33, 16, 48))),
    chunks=((8, 40), (16, 16), (1, 23)),
    verified=(5, 48),
    linear_tokens=(1, 9),
)  # fmt: skip


@dataclass(frozen=True)
class CaseTable:
    """Builds the cases for one machine.

    Attributes:
        may_compile: False runs what torch would compile as it stands: right results, meaningless times.
    """

    sizes: Sizes
    dtype: torch.dtype
    device: torch.device
    may_compile: bool = True

    def __iter__(self) -> Iterator[KernelCase]:
        sizes = self.sizes
        for batch in sizes.decode_batches:
            for num_keys in sizes.decode_keys:
                yield self.decode((num_keys,) * batch, f"B={batch}, {num_keys:,} keys")
        for kv_format in ("int8", "fp8_e4m3"):
            yield self.quantised_decode(sizes.decode_batches[-1], sizes.decode_keys[-1] // 4, kv_format)
        for name, seq_lens in sizes.ragged_decodes:
            yield self.decode(seq_lens, f"B={len(seq_lens)}, {name}, {min(seq_lens):,} to {max(seq_lens):,} keys")
        for num_tokens in sizes.prefill_tokens:
            yield self.attention(((num_tokens, num_tokens),), f"{num_tokens:,} tokens")
        yield self.attention(sizes.chunks, f"B={len(sizes.chunks)}, mixed chunks")
        yield self.attention((sizes.verified,), f"verify {sizes.verified[0]} of {sizes.verified[1]:,} tokens")
        for num_tokens in sizes.row_tokens:
            yield from (self.rope_kv_write(num_tokens, kv_format) for kv_format in ("none", "int8", "fp8_e4m3"))
            yield self.rmsnorm_residual(num_tokens)
            yield self.silu_mul(num_tokens)
        # A feed-forward layer's weights: gate and up, and down.
        for shape in ((2 * sizes.intermediate, sizes.hidden), (sizes.hidden, sizes.intermediate)):
            for num_tokens in sizes.linear_tokens:
                yield from Layer(num_tokens, *shape, sizes.linear_group, self.dtype, self.device).cases(self.tolerance)

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]

    # -- attention ----------------------------------------------------------------------------------------------------

    def decode(self, seq_lens: tuple[int, ...], label: str) -> KernelCase:
        return self.attention(tuple((1, length) for length in seq_lens), label)

    def quantised_decode(self, batch_size: int, num_keys: int, kv_format: KVFormat) -> KernelCase:
        """Nobody else reads this format, so it is compared with the reference only."""
        sizes = self.sizes
        seq_lens = (num_keys,) * batch_size
        work = attention_work((1,) * batch_size, seq_lens, *self._heads, self.dtype.itemsize, 1, 4)

        def make_variants() -> dict[str, MakeVariant]:
            q = self._randn(batch_size, sizes.num_heads, sizes.head_dim)
            k, v, tables, scales = self._quantised_pages(seq_lens, kv_format)
            inputs = q, k, v, tables, torch.tensor(seq_lens, dtype=torch.int32, device=self.device)
            options = {"scale": sizes.scale, "max_seq_len": num_keys, **scales}
            return {
                OURS: lambda: Variant(lambda: paged_decode(*inputs, **options)),
                REFERENCE: lambda: Variant(lambda: paged_attention_reference(*inputs, **options), is_timed=False),
            }

        label = f"B={batch_size}, {num_keys:,} keys, {kv_format} cache"
        chunks = tuple((1, length) for length in seq_lens)
        return KernelCase("paged_decode", label, work, make_variants, self.tolerance, only_reads=True, chunks=chunks)

    def attention(self, chunks: tuple[tuple[int, int], ...], label: str) -> KernelCase:
        """`chunks`: per sequence, the tokens to compute and all its tokens."""
        query_lens, seq_lens = (tuple(lengths) for lengths in zip(*chunks, strict=True))
        work = attention_work(query_lens, seq_lens, *self._heads, self.dtype.itemsize, self.dtype.itemsize)
        # A few tokens after a long context, drafts to verify, are as memory-bound as decode, and go to its kernel.
        group = self.sizes.num_heads // self.sizes.num_kv_heads
        few = query_lens != seq_lens and max(query_lens) * group <= max_rows(self.sizes.head_dim)
        kernel: Callable[..., Any] = paged_decode if few else paged_prefill
        longest = {"max_seq_len": max(seq_lens)} if few else {}

        def make_variants() -> dict[str, MakeVariant]:
            batch = self._attention_batch(query_lens, seq_lens)
            options = {"max_query_len": max(query_lens), "scale": batch.scale, **longest}
            starts = None if max(query_lens) == 1 else batch.cu_query_lens
            paged = batch.k_cache, batch.v_cache, batch.block_tables, batch.lengths
            ours: dict[str, MakeVariant] = {OURS: lambda: Variant(lambda: kernel(batch.q, *paged, starts, **options))}
            if not few and self._has_tma:
                inputs = batch.q, *paged, batch.cu_query_lens
                ours["ours, by TMA"] = lambda: Variant(lambda: paged_prefill_tma(*inputs, scale=batch.scale))
            return ours | attention_rivals(batch, may_compile=self.may_compile)

        return KernelCase(kernel.__name__, label, work, make_variants, self.tolerance, few, chunks)

    @property
    def _has_tma(self) -> bool:
        """Whether `paged_prefill_tma` takes these cases, on Hopper itself."""
        takes = self.sizes.page == PAGE and self.dtype.itemsize == 2 and gpu_generation(self.device) == "hopper"
        return takes and torch.cuda.get_device_capability(self.device)[0] == 9

    @property
    def _heads(self) -> tuple[int, int, int]:
        return self.sizes.num_heads, self.sizes.num_kv_heads, self.sizes.head_dim

    # -- rows ---------------------------------------------------------------------------------------------------------

    def rope_kv_write(self, num_tokens: int, kv_format: KVFormat) -> KernelCase:
        sizes, itemsizes = self.sizes, (self.dtype.itemsize, cache_dtype(kv_format, self.dtype).itemsize)
        work = rope_kv_write_work(num_tokens, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, *itemsizes)

        def make_variants() -> dict[str, MakeVariant]:
            new_q = self._randn(num_tokens, sizes.num_heads, sizes.head_dim)
            new_k, new_v = (self._randn(num_tokens, sizes.num_kv_heads, sizes.head_dim) for _ in range(2))
            slots = self._scattered_slots(num_tokens)
            positions = torch.arange(num_tokens, device=self.device)
            angles = positions[:, None] * 1e4 ** -torch.linspace(0, 1, sizes.head_dim // 2, device=self.device)
            cos, sin = angles.cos(), angles.sin()

            def writer(write: Callable[..., Tensor], is_timed: bool = True) -> Variant:
                q = new_q.clone()  # rotated in place, again by each call; the first one is compared
                k, v, scales = self._empty_cache(num_tokens, kv_format)
                call = lambda: write(q, new_k, new_v, cos, sin, positions, slots, k, v, **scales)  # noqa: E731
                return Variant(call, lambda _: (q, k, v, *scales.values()), is_timed)

            def rival(compile: Callable[[Callable[[], Tensor]], Callable[[], Any]]) -> Variant:
                k, v, _ = self._empty_cache(num_tokens, "none")

                def rotate_and_put() -> Tensor:
                    q, rotated_k = (rope_reference(x, cos, sin, positions).to(x.dtype) for x in (new_q, new_k))
                    _index_put(rotated_k, new_v, k, v, slots)
                    return q  # returned, or a compiler would leave it out

                return Variant(compile(rotate_and_put), lambda q: (q, k, v))

            ours: dict[str, MakeVariant] = {OURS: lambda: writer(rope_kv_write)}
            if kv_format != "none":  # which only our kernels read
                return ours | {REFERENCE: lambda: writer(rope_kv_write_reference, is_timed=False)}
            return ours | {
                "torch eager": lambda: rival(lambda function: function),
                "torch.compile": lambda: rival(self._compiled),
            }

        suffix, tolerance = "", self.tolerance
        if kv_format != "none":
            suffix, tolerance = f", {kv_format} cache", QUANTISED_WRITE_TOLERANCE
        return KernelCase("rope_kv_write", f"{num_tokens:,} tokens{suffix}", work, make_variants, tolerance)

    def rmsnorm_residual(self, num_tokens: int) -> KernelCase:
        work = rmsnorm_residual_work(num_tokens, self.sizes.hidden, self.dtype.itemsize)

        def make() -> tuple[Callable[[], Any], Callable[[], Any]]:
            x, residual = (self._randn(num_tokens, self.sizes.hidden) for _ in range(2))
            weight = self._randn(self.sizes.hidden)

            def eager() -> tuple[Tensor, Tensor]:
                total = x + residual
                return F.rms_norm(total, (self.sizes.hidden,), weight, 1e-5), total

            return lambda: rmsnorm_residual(x, residual, weight, 1e-5), eager

        return self._against_torch("rmsnorm_residual", f"{num_tokens:,} x {self.sizes.hidden:,}", work, make)

    def silu_mul(self, num_tokens: int) -> KernelCase:
        width = self.sizes.intermediate

        def make() -> tuple[Callable[[], Any], Callable[[], Any]]:
            gate_up = self._randn(num_tokens, 2 * width)
            return lambda: silu_mul(gate_up), lambda: F.silu(gate_up[:, :width]) * gate_up[:, width:]

        work = silu_mul_work(num_tokens, width, self.dtype.itemsize)
        return self._against_torch("silu_mul", f"{num_tokens:,} x {width:,}", work, make)

    def _against_torch(
        self, kernel: str, label: str, work: Work, make: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]
    ) -> KernelCase:
        """A kernel against torch's own form of it, as it stands and compiled; `make` gives both on the same data."""

        def make_variants() -> dict[str, MakeVariant]:
            ours, eager = make()
            return {
                OURS: lambda: Variant(ours),
                "torch eager": lambda: Variant(eager),
                "torch.compile": lambda: Variant(self._compiled(eager)),
            }

        return KernelCase(kernel, label, work, make_variants, self.tolerance)

    def _compiled(self, function: Callable[[], Any]) -> Callable[[], Any]:
        return compiled(function) if self.may_compile else function

    # -- inputs -------------------------------------------------------------------------------------------------------

    def _randn(self, *shape: int) -> Tensor:
        # Made on the device: the largest case holds 8 GiB. Random, because zeros run faster than real data.
        return torch.randn(*shape, dtype=self.dtype, device=self.device)

    def _attention_batch(self, query_lens: tuple[int, ...], seq_lens: tuple[int, ...]) -> AttentionBatch:
        sizes, page = self.sizes, self.sizes.page
        q = self._randn(sum(query_lens), sizes.num_heads, sizes.head_dim)
        longest = -(-max(seq_lens) // page) * page
        keys, values = (self._randn(len(seq_lens), sizes.num_kv_heads, longest, sizes.head_dim) for _ in range(2))
        tables, is_used = self._tables(seq_lens)
        k_cache, v_cache = (self._pages(dense, tables, is_used) for dense in (keys, values))
        return AttentionBatch(q, keys, values, k_cache, v_cache, tables, seq_lens, query_lens, sizes.scale)

    def _tables(self, seq_lens: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Block tables whose pages are scattered over the pool at random, as they are after an hour of serving; and
        which entries are in use, bool like them."""
        num_pages = torch.tensor([-(-length // self.sizes.page) for length in seq_lens], device=self.device)
        width = int(num_pages.max())
        width += -width % 16
        is_used = torch.arange(width, device=self.device) < num_pages[:, None]
        tables = torch.zeros(len(seq_lens), width, dtype=torch.int32, device=self.device)
        tables[is_used] = torch.randperm(int(num_pages.sum()), device=self.device, dtype=torch.int32)
        return tables, is_used

    def _pages(self, dense: Tensor, tables: Tensor, is_used: Tensor) -> Tensor:
        """[B, H_kv, S, D], S whole pages, as the pages [N, H_kv, page, D] that the tables name."""
        batch, num_kv_heads, length, head_dim = dense.shape
        num_pages = length // self.sizes.page
        pages = dense.view(batch, num_kv_heads, num_pages, self.sizes.page, head_dim).transpose(1, 2)
        block_ids = tables[is_used].long()
        cache = dense.new_empty(len(block_ids), num_kv_heads, self.sizes.page, head_dim)
        cache[block_ids] = pages[is_used[:, :num_pages]]
        return cache

    def _quantised_pages(
        self, seq_lens: tuple[int, ...], kv_format: KVFormat
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Random codes and scales: what they decode to does not change the time."""
        tables, is_used = self._tables(seq_lens)
        shape = (int(is_used.sum()), self.sizes.num_kv_heads, self.sizes.page, self.sizes.head_dim)
        stored = cache_dtype(kv_format, self.dtype)
        k, v = (torch.randint(0, 100, shape, dtype=stored, device=self.device) for _ in range(2))
        scales = {name: torch.rand(shape[:3], device=self.device) / 100 for name in ("k_scale", "v_scale")}
        return k, v, tables, scales

    def _empty_cache(self, num_tokens: int, kv_format: KVFormat) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        sizes = self.sizes
        shape = (-(-num_tokens // sizes.page), sizes.num_kv_heads, sizes.page, sizes.head_dim)
        k, v = (torch.zeros(shape, dtype=cache_dtype(kv_format, self.dtype), device=self.device) for _ in range(2))
        scales = {}
        if kv_format != "none":
            scales = {name: torch.zeros(shape[:3], device=self.device) for name in ("k_scale", "v_scale")}
        return k, v, scales

    def _scattered_slots(self, num_tokens: int) -> Tensor:
        """Slots for the tokens in whole pages that are scattered over the cache."""
        page = self.sizes.page
        pages = torch.randperm(-(-num_tokens // page), device=self.device)
        return (pages[:, None] * page + torch.arange(page, device=self.device)).reshape(-1)[:num_tokens]


def _index_put(new_k: Tensor, new_v: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    page = k.shape[2]
    blocks, offsets = slots // page, slots % page
    k[blocks, :, offsets] = new_k
    v[blocks, :, offsets] = new_v
