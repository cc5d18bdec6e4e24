"""Every kernel's calls in production, on tensors without storage: `aot` compiles them for every target."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from twophase_kernels.fp8_linear import E4M3, fp8_linear, quantise_tokens
from twophase_kernels.linear_splits import sum_splits
from twophase_kernels.merge_splits import merge_splits
from twophase_kernels.packed_codes import WORDS_PER_RUN, num_runs
from twophase_kernels.paged_decode import max_rows, paged_decode
from twophase_kernels.paged_prefill import paged_prefill
from twophase_kernels.quant import KVFormat, cache_dtype
from twophase_kernels.quantized_linear import quantized_linear
from twophase_kernels.rmsnorm_residual import rmsnorm_residual
from twophase_kernels.rope_kv_write import rope_kv_write
from twophase_kernels.sampling import draw_tokens, weigh
from twophase_kernels.silu_mul import silu_mul

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}


@dataclass(frozen=True)
class AotConfig:
    """One way a wrapper is called in production, on `device='meta'` tensors of its shapes, dtypes and strides."""

    name: str  # tells it from the kernel's other configurations, e.g. 'bf16 32/8/128 page 64'
    launch: Callable[[], object]
    # The `@triton.jit` functions that loop over tiles of keys or weights: they must use matrix instructions, asynchronous
    # copies (where the target has them) and at least two buffers.
    streaming_kernels: tuple[str, ...] = ()


def meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def production_configs() -> dict[str, tuple[AotConfig, ...]]:
    """Every kernel's configurations, by the name of its file."""
    return {
        "rope_kv_write": tuple(_rope_kv_write()),
        "rmsnorm_residual": tuple(_rmsnorm_residual()),
        "silu_mul": tuple(_silu_mul()),
        "sampling": tuple(_sampling()),
        "paged_decode": tuple(_paged_decode()),
        "paged_prefill": tuple(_paged_prefill()),
        "merge_splits": tuple(_merge_splits()),
        "quantized_linear": tuple(_quantized_linear()),
        "fp8_linear": tuple(_fp8_linear()),
        "linear_splits": tuple(_sum_splits()),
    }


# -- attention --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetaLayer:
    """An attention layer as it occurs in production."""

    dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page: int = 16
    kv_format: KVFormat = "none"

    @property
    def max_tokens(self) -> int:
        """Tokens per sequence that `paged_decode` accepts."""
        return max_rows(self.head_dim) // (self.num_heads // self.num_kv_heads)

    def __str__(self) -> str:
        kv = "" if self.kv_format == "none" else f" kv {self.kv_format}"
        return f"{NAMES[self.dtype]}{kv} {self.num_heads}/{self.num_kv_heads}/{self.head_dim} page {self.page}"

    def qkv(self, num_tokens: int) -> tuple[Tensor, ...]:
        """Views of the fused projection's output, as the engine has them."""
        heads = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        return meta(num_tokens, sum(heads), self.head_dim, dtype=self.dtype).split(heads, dim=1)

    def caches(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """K, V and their scales."""
        shape = (1024, self.num_kv_heads, self.page)
        dtype = cache_dtype(self.kv_format, self.dtype)
        scales = [None if self.kv_format == "none" else meta(*shape, dtype=FP32) for _ in "kv"]
        return [meta(*shape, self.head_dim, dtype=dtype) for _ in "kv"], scales

    def inputs(self, num_seqs: int, num_tokens: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor | None]]:
        """(q, K, V, block tables, lengths), and the scales."""
        caches, (k_scale, v_scale) = self.caches()
        tables = meta(num_seqs, 512, dtype=torch.int32), meta(num_seqs, dtype=torch.int32)
        return (self.qkv(num_tokens)[0], *caches, *tables), {"k_scale": k_scale, "v_scale": v_scale}


LAYERS = (
    MetaLayer(BF16, 32, 8, 128),  # Llama 3, Mistral, Qwen3
    MetaLayer(FP16, 32, 8, 128, page=64),
    MetaLayer(BF16, 28, 4, 128),  # Qwen2: a group of 7
    MetaLayer(BF16, 9, 3, 64),  # SmolLM2
    MetaLayer(BF16, 16, 1, 256, page=64),
    MetaLayer(BF16, 32, 32, 96),
    MetaLayer(FP16, 32, 32, 80),
    MetaLayer(FP32, 9, 3, 64),
    MetaLayer(BF16, 32, 8, 128, kv_format="int8"),
    MetaLayer(BF16, 32, 8, 128, kv_format="fp8_e4m3"),
    MetaLayer(FP16, 9, 3, 64, page=64, kv_format="int8"),
    MetaLayer(FP16, 9, 3, 64, page=64, kv_format="fp8_e4m3"),
)
LARGEST = MetaLayer(FP32, 16, 1, 256, page=64)
WINDOW = {"window": 4096, "num_sinks": 4}
WINDOW_NAME = ", window 4096 sinks 4"


def _paged_decode() -> Iterator[AotConfig]:
    def config(layer: MetaLayer, num_splits: int | None = None, tokens: int = 1, **window: int) -> AotConfig:
        def launch() -> object:
            args, scales = layer.inputs(64, 64 * tokens)
            options: dict[str, Any] = {"scale": 0.1, "num_splits": num_splits, **window}
            if tokens > 1:
                options["cu_query_lens"] = meta(65, dtype=torch.int32)
            return paged_decode(*args, **scales, **options, max_query_len=tokens)

        splits = "split by length" if num_splits is None else f"{num_splits} splits"
        name = f"{layer}, {splits}{WINDOW_NAME if window else ''}" + (f", {tokens} tokens" if tokens > 1 else "")
        return AotConfig(name, launch, streaming_kernels=("paged_decode_kernel",))

    yield from (config(layer, num_splits) for num_splits in (1, None) for layer in LAYERS)
    yield config(LARGEST, 1)
    yield config(LAYERS[0], **WINDOW)
    yield config(LAYERS[0], 8)
    yield config(LAYERS[0], 8, **WINDOW)
    # Drafts to verify: 4 beside the newest token, in tiles of 16 and 32 rows, and as many as a tile holds.
    yield from (config(LAYERS[i], tokens=5) for i in (0, 3, 8, 9))
    yield from (config(layer, tokens=layer.max_tokens) for layer in LAYERS)
    yield config(LAYERS[0], 8, 5)
    yield config(LAYERS[0], 8, 5, **WINDOW)
    yield config(LAYERS[0], None, 16, **WINDOW)


def _paged_prefill() -> Iterator[AotConfig]:
    def config(layer: MetaLayer, max_query_len: int = 2048, **window: int) -> AotConfig:
        def launch() -> object:
            args, scales = layer.inputs(4, 4 * max_query_len)
            bounds = meta(5, dtype=torch.int32)
            return paged_prefill(*args, bounds, **scales, scale=0.1, max_query_len=max_query_len, **window)

        name = f"{layer}, chunks of {max_query_len}{WINDOW_NAME if window else ''}"
        return AotConfig(name, launch, streaming_kernels=("paged_prefill_kernel",))

    yield from map(config, (*LAYERS, LARGEST))
    yield config(LAYERS[0], 4)
    yield config(LAYERS[0], 16)
    yield config(LAYERS[0], **WINDOW)


def _merge_splits() -> Iterator[AotConfig]:
    def launch(dtype: torch.dtype, head_dim: int) -> object:
        partial = meta(8, 32, 16, head_dim, dtype=FP32)
        out, lse = meta(8, 32, head_dim, dtype=dtype), meta(8, 32, dtype=FP32)
        return merge_splits(partial, partial[..., 0].contiguous(), out, lse, 16)

    for dtype in (BF16, FP16):
        for head_dim in (64, 128):
            yield AotConfig(f"{NAMES[dtype]} D={head_dim}", partial(launch, dtype, head_dim))


# -- element by element -----------------------------------------------------------------------------------------------


def _rope_kv_write() -> Iterator[AotConfig]:
    """Llama-3-8B heads in bf16 for each cache format; SmolLM2's in fp16."""

    def launch(layer: MetaLayer) -> None:
        num_tokens = 8192
        angles, index = meta(8192, layer.head_dim // 2, dtype=FP32), meta(num_tokens, dtype=torch.int64)
        caches, scales = layer.caches()
        rope_kv_write(*layer.qkv(num_tokens), angles, angles, index, index, *caches, *scales)

    formats: tuple[KVFormat, ...] = ("none", "int8", "fp8_e4m3")
    for layer in (*(MetaLayer(BF16, 32, 8, 128, 64, each) for each in formats), MetaLayer(FP16, 9, 3, 64, 64)):
        yield AotConfig(str(layer), partial(launch, layer))


def _rmsnorm_residual() -> Iterator[AotConfig]:
    """Hidden sizes of SmolLM2, Llama-3-8B and Llama-3-70B; heads of 128 as Qwen3 normalises them."""
    for width, dtype, has_residual in ((576, FP16, True), (4096, BF16, True), (8192, BF16, True), (128, BF16, False)):
        x, weight = meta(8192, width, dtype=dtype), meta(width, dtype=dtype)
        launch = partial(rmsnorm_residual, x, x if has_residual else None, weight, 1e-5)
        yield AotConfig(f"{NAMES[dtype]} {width} {'with' if has_residual else 'without'} residual", launch)


def _sampling() -> Iterator[AotConfig]:
    row, draw = partial(meta, 32, dtype=torch.float64), partial(meta, 64)
    arguments = row(), row(), row(), draw(dtype=torch.int64), draw(dtype=torch.float64)
    yield AotConfig("128256", partial(draw_tokens, meta(32, 128_256, dtype=FP32), *arguments))
    given = meta(32, dtype=torch.int64), meta(32, dtype=FP32), meta(32, dtype=FP32)
    yield AotConfig("weights of 128256", partial(weigh, meta(32, 128_256, dtype=FP32), *given))


def _silu_mul() -> Iterator[AotConfig]:
    """Intermediate sizes of SmolLM2 and Llama-3-8B."""
    for dtype, width in ((FP16, 1536), (BF16, 14336)):
        yield AotConfig(f"{NAMES[dtype]} {width}", partial(silu_mul, meta(8192, 2 * width, dtype=dtype)))


# -- linear -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetaLinear:
    """A linear layer as it occurs in production: Llama-3-8B's output projection, unless stated otherwise.

    576 inputs are SmolLM2's, and fill no whole number of steps.
    """

    dtype: torch.dtype
    num_tokens: int
    num_splits: int = 1
    has_bias: bool = False
    num_inputs: int = 4096
    num_outputs: int = 4096

    def __str__(self) -> str:
        shape = f"{self.num_outputs} x {self.num_inputs}, T={self.num_tokens}"
        return shape + (f", {self.num_splits} splits" if self.num_splits > 1 else "") + ", bias" * self.has_bias

    def x(self) -> Tensor:
        return meta(self.num_tokens, self.num_inputs, dtype=self.dtype)

    def packed(self, bits: int) -> Tensor:
        return meta(num_runs(self.num_inputs, bits), self.num_outputs, WORDS_PER_RUN, dtype=torch.int16)

    def options(self) -> dict[str, object]:
        bias = meta(self.num_outputs, dtype=self.dtype) if self.has_bias else None
        return {"num_splits": self.num_splits, "bias": bias}


def _quantized_linear() -> Iterator[AotConfig]:
    """Each of a binary of its own on every target, though not every target has a tile of its own for each T."""

    def launch(layer: MetaLinear, group: int, has_minima: bool) -> Tensor:
        scales = meta(*([layer.num_inputs // group] if group else []), layer.num_outputs, dtype=FP32)
        minima = scales if has_minima else None
        return quantized_linear(layer.x(), layer.packed(4 if group else 8), scales, minima, **layer.options())

    for layer, group, has_minima in (
        (MetaLinear(BF16, 1), 32, True),
        (MetaLinear(BF16, 32, num_splits=8, has_bias=True), 32, True),
        (MetaLinear(BF16, 64, num_inputs=576), 32, True),
        (MetaLinear(BF16, 1), 32, False),
        (MetaLinear(BF16, 64), 64, False),
        (MetaLinear(BF16, 1), 128, False),
        (MetaLinear(FP16, 16), 64, True),
        (MetaLinear(FP16, 64), 128, False),
        (MetaLinear(FP32, 1), 32, True),
        (MetaLinear(BF16, 1), 0, False),
        (MetaLinear(BF16, 16, has_bias=True), 0, False),
        (MetaLinear(BF16, 32, num_splits=4), 0, False),
        (MetaLinear(BF16, 64, num_inputs=576), 0, False),
        (MetaLinear(FP16, 1), 0, False),
        (MetaLinear(FP32, 64, has_bias=True), 0, False),
    ):
        weight = f"int4 g{group}{' minima' if has_minima else ''}" if group else "int8"
        name = f"{NAMES[layer.dtype]} {weight}, {layer}"
        yield AotConfig(name, partial(launch, layer, group, has_minima), ("quantized_linear_kernel",))


def _fp8_linear() -> Iterator[AotConfig]:
    def launch(layer: MetaLinear) -> Tensor:
        x, weight = (meta(n, layer.num_inputs, dtype=E4M3) for n in (layer.num_tokens, layer.num_outputs))
        x_scales, scales = (meta(n, dtype=FP32) for n in (layer.num_tokens, layer.num_outputs))
        return fp8_linear(x, x_scales, weight, scales, dtype=layer.dtype, **layer.options())

    for layer in (
        MetaLinear(BF16, 1),
        MetaLinear(BF16, 16, has_bias=True),
        MetaLinear(BF16, 32, num_splits=2),
        MetaLinear(BF16, 64, num_inputs=576),
        MetaLinear(FP16, 64),
    ):
        yield AotConfig(f"{NAMES[layer.dtype]} fp8, {layer}", partial(launch, layer), ("fp8_linear_kernel",))
    for dtype, width in ((FP16, 576), (BF16, 4096), (BF16, 14336)):
        yield AotConfig(f"{NAMES[dtype]} tokens of {width}", partial(quantise_tokens, meta(64, width, dtype=dtype)))


def _sum_splits() -> Iterator[AotConfig]:
    for dtype, bias in ((BF16, meta(4096)), (FP16, None)):
        launch = partial(sum_splits, meta(16, 16, 4096, dtype=FP32), bias, meta(16, 4096, dtype=dtype))
        yield AotConfig(f"{NAMES[dtype]} 16 splits{', bias' if bias is not None else ''}", launch)
