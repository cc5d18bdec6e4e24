"""What `twophase bench kernels` measures: each kernel at serving sizes, with its rivals on the same data."""

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
from twophase_tools.bench.kernel_rivals import attention_rivals
from twophase_tools.bench.kernel_variants import OURS, REFERENCE, KernelCase, MakeVariant, Variant, Work, compiled

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
        batch, num_keys = sizes.decode_batches[-1], sizes.decode_keys[-1] // 4
        for kv_format in ("int8", "fp8_e4m3"):
            yield self.decode((num_keys,) * batch, f"B={batch}, {num_keys:,} keys, {kv_format} cache", kv_format)
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

    def decode(self, seq_lens: tuple[int, ...], label: str, kv_format: KVFormat = "none") -> KernelCase:
        return self.attention(tuple((1, length) for length in seq_lens), label, kv_format)

    def attention(self, chunks: tuple[tuple[int, int], ...], label: str, kv_format: KVFormat = "none") -> KernelCase:
        """`chunks`: per sequence, the tokens to compute and all its tokens. Where these are unequal, or the cache is
        quantised, nobody else takes them as they are, and our answer is compared with the reference's."""
        sizes, (query_lens, seq_lens) = self.sizes, (tuple(lengths) for lengths in zip(*chunks, strict=True))
        has_rivals = len({*chunks}) == 1 and seq_lens[0] % sizes.page == 0 and kv_format == "none"
        # K and V of every key once, with their scales, q in and out once; Q.K and P.V of visible pairs. Partial results
        # are left out: they belong to how the work was split, not to the work.
        num_stored, num_scale_bytes = self._stored(kv_format)
        kv_bytes = sum(seq_lens) * sizes.num_kv_heads * 2 * (sizes.head_dim * num_stored + num_scale_bytes)
        q_bytes = sum(query_lens) * sizes.num_heads * sizes.head_dim * 2 * self.dtype.itemsize
        num_pairs = sum(n * (length - n) + n * (n + 1) // 2 for n, length in chunks)
        work = Work(kv_bytes + q_bytes, num_pairs * sizes.num_heads * 4 * sizes.head_dim)
        # A few tokens after a long context, drafts to verify, are as memory-bound as decode, and go to its kernel.
        group = sizes.num_heads // sizes.num_kv_heads
        few = query_lens != seq_lens and max(query_lens) * group <= max_rows(sizes.head_dim)
        kernel: Callable[..., Any] = paged_decode if few else paged_prefill
        lengths = {"max_query_len": max(query_lens)} | ({"max_seq_len": max(seq_lens)} if few else {})

        def make_variants() -> dict[str, MakeVariant]:
            q = self._randn(sum(query_lens), sizes.num_heads, sizes.head_dim)
            k, v, tables, scales = self._cache(seq_lens, kv_format)
            seq_ends, query_ends = (
                torch.tensor(each, dtype=torch.int32, device=self.device) for each in (seq_lens, [0, *query_lens])
            )
            starts = None if max(query_lens) == 1 else query_ends.cumsum(0, dtype=torch.int32)
            paged, options = (q, k, v, tables, seq_ends, starts), {"scale": sizes.scale, **scales}
            ours: dict[str, MakeVariant] = {OURS: lambda: Variant(lambda: kernel(*paged, **lengths, **options))}
            if not few and self._has_tma:
                ours["ours, by TMA"] = lambda: Variant(lambda: paged_prefill_tma(*paged, **options))
            if not has_rivals:
                reference = lambda: paged_attention_reference(*paged, **options)  # noqa: E731
                return ours | {REFERENCE: lambda: Variant(reference, is_timed=False)}
            queries = q.unflatten(0, (len(chunks), -1)).transpose(1, 2).contiguous()
            used = tables[:, : seq_lens[0] // sizes.page].long()
            keys, values = (cache[used].transpose(1, 2).flatten(2, 3) for cache in (k, v))
            return ours | attention_rivals(queries, keys, values, sizes.scale, may_compile=self.may_compile)

        return KernelCase(kernel.__name__, label, work, make_variants, self.tolerance, few, chunks)

    @property
    def _has_tma(self) -> bool:
        """Whether `paged_prefill_tma` takes these cases, on Hopper itself."""
        takes = self.sizes.page == PAGE and self.dtype.itemsize == 2 and self.device.type == "cuda"
        is_hopper = takes and gpu_generation(self.device) == "hopper"
        return is_hopper and torch.cuda.get_device_capability(self.device)[0] == 9

    def _stored(self, kv_format: KVFormat) -> tuple[int, int]:
        """Bytes of a number in the cache, and of a row's scale."""
        return (self.dtype.itemsize, 0) if kv_format == "none" else (1, 4)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def rope_kv_write(self, num_tokens: int, kv_format: KVFormat) -> KernelCase:
        sizes, (num_stored, num_scale_bytes) = self.sizes, self._stored(kv_format)
        # q, K and V in and out; a row of cos and of sin, a position and a slot per token; 3 flops an element.
        row_bytes = sizes.head_dim * (self.dtype.itemsize + num_stored) + num_scale_bytes
        q_bytes = sizes.num_heads * sizes.head_dim * 2 * self.dtype.itemsize
        angle_bytes = 2 * (sizes.head_dim // 2) * 4 + 2 * 8
        num_rows = sizes.num_heads + sizes.num_kv_heads
        num_bytes = num_tokens * (q_bytes + 2 * sizes.num_kv_heads * row_bytes + angle_bytes)
        work = Work(num_bytes, 3 * num_tokens * num_rows * sizes.head_dim)

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
        width, itemsize = self.sizes.hidden, self.dtype.itemsize
        # x and the residual in once, y and the sum out once, the weight once in all; 5 flops an element.
        work = Work((4 * num_tokens + 1) * width * itemsize, 5 * num_tokens * width)

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

        # gate and up in, the product out; exp2 counts as one of 7 flops an element.
        work = Work(3 * num_tokens * width * self.dtype.itemsize, 7 * num_tokens * width)
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

    def _cache(
        self, seq_lens: tuple[int, ...], kv_format: KVFormat
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """K and V in pages, block tables, and scales, all random: what codes decode to does not change the time. Each
        sequence has as many pages as the longest one, scattered over the pool, as they are after an hour of serving."""
        sizes, batch, num_pages = self.sizes, len(seq_lens), -(-max(seq_lens) // self.sizes.page)
        shape = batch * num_pages, sizes.num_kv_heads, sizes.page, sizes.head_dim
        pages = torch.randperm(shape[0], dtype=torch.int32, device=self.device).view(batch, num_pages)
        tables = F.pad(pages, (0, -num_pages % 16))
        if kv_format == "none":
            return self._randn(*shape), self._randn(*shape), tables, {}
        stored = cache_dtype(kv_format, self.dtype)
        k, v = (torch.randint(0, 100, shape, dtype=stored, device=self.device) for _ in range(2))
        scales = {name: torch.rand(shape[:3], device=self.device) / 100 for name in ("k_scale", "v_scale")}
        return k, v, tables, scales

    def _empty_cache(self, num_tokens: int, kv_format: KVFormat) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        k, v, _, scales = self._cache((num_tokens,), kv_format)
        for tensor in (k, v, *scales.values()):
            tensor.zero_()
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
