"""Every kernel's calls in production, on tensors without storage: `aot` compiles them for every target."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

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
from twophase_kernels.silu_mul import silu_mul

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPE_NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}


@dataclass(frozen=True)
class AotConfig:
    """One way a wrapper is called in production.

    Attributes:
        name: Tells it from the kernel's other configurations, e.g. 'bf16 32/8/128 page 64'.
        launch: Calls the public wrapper on `device='meta'` tensors of production shapes, dtypes and strides.
        streaming_kernels: Names of the `@triton.jit` functions it launches that loop over tiles of keys or weights:
            they must use matrix instructions, asynchronous copies (where the target has them) and at least two buffers.
    """

    name: str
    launch: Callable[[], object]
    streaming_kernels: tuple[str, ...] = ()


class MetaInputs(NamedTuple):
    """Arguments without storage, to compile with: q, k_cache, v_cache, block_tables, seq_lens; and the scales."""

    args: tuple[Tensor, ...]
    scales: dict[str, Tensor | None]


@dataclass(frozen=True)
class MetaLayer:
    """An attention layer as it occurs in production, for compiling ahead of time."""

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
        return f"{DTYPE_NAMES[self.dtype]}{kv} {self.num_heads}/{self.num_kv_heads}/{self.head_dim} page {self.page}"

    def inputs(self, num_seqs: int, num_tokens: int) -> MetaInputs:
        def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device="meta")

        # q is a view of the fused projection's output, as the engine has it.
        qkv = empty((num_tokens, self.num_heads + 2 * self.num_kv_heads, self.head_dim), self.dtype)
        caches = [
            empty((1024, self.num_kv_heads, self.page, self.head_dim), cache_dtype(self.kv_format, self.dtype))
            for _ in "kv"
        ]
        tables = empty((num_seqs, 512), torch.int32), empty((num_seqs,), torch.int32)
        scale = None if self.kv_format == "none" else empty((1024, self.num_kv_heads, self.page), torch.float32)
        return MetaInputs((qkv[:, : self.num_heads], *caches, *tables), {"k_scale": scale, "v_scale": scale})


PRODUCTION_LAYERS = (
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


def production_configs() -> dict[str, tuple[AotConfig, ...]]:
    """Every kernel's configurations, by the name of its file."""
    return {
        "rope_kv_write": _rope_kv_write_configs(),
        "rmsnorm_residual": _rmsnorm_residual_configs(),
        "silu_mul": _silu_mul_configs(),
        "paged_decode": _paged_decode_configs(),
        "paged_prefill": _paged_prefill_configs(),
        "merge_splits": _merge_splits_configs(),
        "quantized_linear": (*_int4_linear_configs(), *_int8_linear_configs()),
        "fp8_linear": (*_fp8_linear_configs(), *_quantise_tokens_configs()),
        "linear_splits": _sum_splits_configs(),
    }


def _rope_kv_write_configs() -> tuple[AotConfig, ...]:
    """Llama-3-8B heads in bf16 for each cache format; SmolLM2's in fp16. q, k, v are views of one tensor."""

    def launch(num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, kv_format: KVFormat) -> None:
        num_tokens, page = 8192, 64
        qkv = torch.empty(num_tokens, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype, device="meta")
        q, k, v = qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        angles = torch.empty(8192, head_dim // 2, device="meta")
        index = torch.empty(num_tokens, dtype=torch.int64, device="meta")
        cache_shape = (1024, num_kv_heads, page, head_dim)
        cache = torch.empty(cache_shape, dtype=cache_dtype(kv_format, dtype), device="meta")
        scale = None if kv_format == "none" else torch.empty(cache_shape[:3], device="meta")
        rope_kv_write(q, k, v, angles, angles, index, index, cache, cache, scale, scale)

    llama = [
        AotConfig(f"bf16 32/8/128 page 64 kv {kv_format}", partial(launch, 32, 8, 128, torch.bfloat16, kv_format))
        for kv_format in ("none", "int8", "fp8_e4m3")
    ]
    return (*llama, AotConfig("fp16 9/3/64 page 64 kv none", lambda: launch(9, 3, 64, torch.float16, "none")))


def _rmsnorm_residual_configs() -> tuple[AotConfig, ...]:
    """Hidden sizes of SmolLM2, Llama-3-8B and Llama-3-70B; heads of 128 as Qwen3 normalises them."""

    def launch(width: int, dtype: torch.dtype, has_residual: bool) -> None:
        x = torch.empty(8192, width, dtype=dtype, device="meta")
        rmsnorm_residual(x, x if has_residual else None, torch.empty(width, dtype=dtype, device="meta"), 1e-5)

    return (
        AotConfig("fp16 576 with residual", lambda: launch(576, torch.float16, True)),
        AotConfig("bf16 4096 with residual", lambda: launch(4096, torch.bfloat16, True)),
        AotConfig("bf16 8192 with residual", lambda: launch(8192, torch.bfloat16, True)),
        AotConfig("bf16 128 without residual", lambda: launch(128, torch.bfloat16, False)),
    )


def _silu_mul_configs() -> tuple[AotConfig, ...]:
    """Intermediate sizes of SmolLM2 and Llama-3-8B."""

    def launch(width: int, dtype: torch.dtype) -> None:
        silu_mul(torch.empty(8192, 2 * width, dtype=dtype, device="meta"))

    return (
        AotConfig("fp16 1536", lambda: launch(1536, torch.float16)),
        AotConfig("bf16 14336", lambda: launch(14336, torch.bfloat16)),
    )


def _paged_decode_configs() -> tuple[AotConfig, ...]:
    def config(
        layer: MetaLayer,
        num_splits: int | None,
        window: int | None = None,
        num_sinks: int = 0,
        tokens: int = 1,
    ) -> AotConfig:
        def launch() -> object:
            inputs = layer.inputs(num_seqs=64, num_tokens=64 * tokens)
            options: dict[str, Any] = {"scale": 0.1, "window": window, "num_sinks": num_sinks, "num_splits": num_splits}
            if tokens > 1:
                options["cu_query_lens"] = torch.empty(65, dtype=torch.int32, device="meta")
            return paged_decode(*inputs.args, **inputs.scales, **options, max_query_len=tokens)

        splits = "split by length" if num_splits is None else f"{num_splits} splits"
        name = f"{layer}, {splits}" + (f", window {window} sinks {num_sinks}" if window else "")
        name += f", {tokens} tokens" if tokens > 1 else ""
        return AotConfig(name, launch, streaming_kernels=("paged_decode_kernel",))

    llama = PRODUCTION_LAYERS[0]
    return (
        *(config(layer, num_splits=1) for layer in PRODUCTION_LAYERS),
        *(config(layer, num_splits=None) for layer in PRODUCTION_LAYERS),
        config(llama, num_splits=None, window=4096, num_sinks=4),
        config(llama, num_splits=8),
        config(llama, num_splits=8, window=4096, num_sinks=4),
        # Drafts to verify: 4 beside the newest token, in tiles of 16 and 32 rows, and as many as a tile holds.
        *(config(PRODUCTION_LAYERS[i], num_splits=None, tokens=5) for i in (0, 3, 8, 9)),
        *(config(layer, num_splits=None, tokens=layer.max_tokens) for layer in PRODUCTION_LAYERS),
        config(llama, num_splits=8, tokens=5),
        config(llama, num_splits=8, window=4096, num_sinks=4, tokens=5),
        config(llama, num_splits=None, window=4096, num_sinks=4, tokens=16),
    )


def _paged_prefill_configs() -> tuple[AotConfig, ...]:
    def config(layer: MetaLayer, max_query_len: int = 2048, window: int | None = None, num_sinks: int = 0) -> AotConfig:
        def launch() -> object:
            inputs = layer.inputs(num_seqs=4, num_tokens=4 * max_query_len)
            cu_query_lens = torch.empty(5, dtype=torch.int32, device="meta")
            options: dict[str, Any] = {
                "scale": 0.1,
                "window": window,
                "num_sinks": num_sinks,
                "max_query_len": max_query_len,
            }
            return paged_prefill(*inputs.args, cu_query_lens, **inputs.scales, **options)

        name = f"{layer}, chunks of {max_query_len}" + (f", window {window} sinks {num_sinks}" if window else "")
        return AotConfig(name, launch, streaming_kernels=("paged_prefill_kernel",))

    return (
        *(config(layer) for layer in PRODUCTION_LAYERS),
        config(PRODUCTION_LAYERS[0], max_query_len=4),
        config(PRODUCTION_LAYERS[0], max_query_len=16),
        config(PRODUCTION_LAYERS[0], window=4096, num_sinks=4),
    )


def _merge_splits_configs() -> tuple[AotConfig, ...]:
    def config(dtype: torch.dtype, head_dim: int) -> AotConfig:
        def launch() -> object:
            partial = torch.empty(8, 32, 16, head_dim, dtype=torch.float32, device="meta")
            out = torch.empty(8, 32, head_dim, dtype=dtype, device="meta")
            return merge_splits(partial, partial[..., 0].contiguous(), out, torch.empty(8, 32, device="meta"), 16)

        return AotConfig(f"{str(dtype).removeprefix('torch.')} D={head_dim}", launch)

    return tuple(config(dtype, head_dim) for dtype in (torch.bfloat16, torch.float16) for head_dim in (64, 128))


@dataclass(frozen=True)
class MetaLinear:
    """A linear layer as it occurs in production, for compiling ahead of time.

    Llama-3-8B's output projection unless stated otherwise; 576 inputs are SmolLM2's, and fill no whole number of steps.
    """

    dtype: torch.dtype
    num_tokens: int
    num_splits: int = 1
    has_bias: bool = False
    num_inputs: int = 4096
    num_outputs: int = 4096

    def __str__(self) -> str:
        splits = f", {self.num_splits} splits" if self.num_splits > 1 else ""
        bias = ", bias" if self.has_bias else ""
        return f"{self.num_outputs} x {self.num_inputs}, T={self.num_tokens}{splits}{bias}"

    def empty(self, *shape: int, dtype: torch.dtype = FP32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def x(self) -> Tensor:
        return self.empty(self.num_tokens, self.num_inputs, dtype=self.dtype)

    def packed(self, bits: int) -> Tensor:
        return self.empty(num_runs(self.num_inputs, bits), self.num_outputs, WORDS_PER_RUN, dtype=torch.int16)

    def options(self) -> dict[str, object]:
        bias = self.empty(self.num_outputs, dtype=self.dtype) if self.has_bias else None
        return {"num_splits": self.num_splits, "bias": bias}


def _int4_linear_configs() -> tuple[AotConfig, ...]:
    """Each of a binary of its own on every target, though not every target has a tile of its own for each T."""

    def config(layer: MetaLinear, group: int, has_minima: bool) -> AotConfig:
        def launch() -> Tensor:
            scales = layer.empty(layer.num_inputs // group, layer.num_outputs)
            minima = scales if has_minima else None
            return quantized_linear(layer.x(), layer.packed(4), scales, minima, **layer.options())

        name = f"{DTYPE_NAMES[layer.dtype]} int4 g{group}{' minima' if has_minima else ''}, {layer}"
        return AotConfig(name, launch, streaming_kernels=("quantized_linear_kernel",))

    return (
        config(MetaLinear(BF16, 1), 32, True),
        config(MetaLinear(BF16, 16, has_bias=True), 32, True),
        config(MetaLinear(BF16, 32, num_splits=8), 32, True),
        config(MetaLinear(BF16, 64, num_inputs=576), 32, True),
        config(MetaLinear(BF16, 1, has_bias=True, num_inputs=576), 32, True),
        config(MetaLinear(BF16, 1), 32, False),
        config(MetaLinear(BF16, 64, has_bias=True), 32, False),
        config(MetaLinear(BF16, 1), 64, True),
        config(MetaLinear(BF16, 64), 64, False),
        config(MetaLinear(BF16, 64), 128, True),
        config(MetaLinear(BF16, 1), 128, False),
        config(MetaLinear(FP16, 1), 32, True),
        config(MetaLinear(FP16, 16), 64, True),
        config(MetaLinear(FP16, 64), 128, False),
        config(MetaLinear(FP32, 1), 32, True),
        config(MetaLinear(FP32, 64), 128, False),
    )


def _int8_linear_configs() -> tuple[AotConfig, ...]:
    def config(layer: MetaLinear) -> AotConfig:
        def launch() -> Tensor:
            return quantized_linear(layer.x(), layer.packed(8), layer.empty(layer.num_outputs), **layer.options())

        name = f"{DTYPE_NAMES[layer.dtype]} int8, {layer}"
        return AotConfig(name, launch, streaming_kernels=("quantized_linear_kernel",))

    return (
        config(MetaLinear(BF16, 1)),
        config(MetaLinear(BF16, 16, has_bias=True)),
        config(MetaLinear(BF16, 32, num_splits=4)),
        config(MetaLinear(BF16, 64, num_inputs=576)),
        config(MetaLinear(FP16, 1)),
        config(MetaLinear(FP16, 64, has_bias=True)),
        config(MetaLinear(FP32, 1)),
        config(MetaLinear(FP32, 64, has_bias=True)),
    )


def _fp8_linear_configs() -> tuple[AotConfig, ...]:
    def config(layer: MetaLinear) -> AotConfig:
        def launch() -> Tensor:
            x, weight = (layer.empty(n, layer.num_inputs, dtype=E4M3) for n in (layer.num_tokens, layer.num_outputs))
            scales = layer.empty(layer.num_tokens), layer.empty(layer.num_outputs)
            return fp8_linear(x, scales[0], weight, scales[1], dtype=layer.dtype, **layer.options())

        return AotConfig(f"{DTYPE_NAMES[layer.dtype]} fp8, {layer}", launch, streaming_kernels=("fp8_linear_kernel",))

    return (
        config(MetaLinear(BF16, 1)),
        config(MetaLinear(BF16, 16, has_bias=True)),
        config(MetaLinear(BF16, 32, num_splits=2)),
        config(MetaLinear(BF16, 64, num_inputs=576)),
        config(MetaLinear(FP16, 64)),
    )


def _quantise_tokens_configs() -> tuple[AotConfig, ...]:
    def config(dtype: torch.dtype, width: int) -> AotConfig:
        x = torch.empty(64, width, dtype=dtype, device="meta")
        return AotConfig(f"{DTYPE_NAMES[dtype]} tokens of {width}", lambda: quantise_tokens(x))

    return config(FP16, 576), config(BF16, 4096), config(BF16, 14336)


def _sum_splits_configs() -> tuple[AotConfig, ...]:
    def config(dtype: torch.dtype, num_splits: int, has_bias: bool) -> AotConfig:
        def launch() -> Tensor:
            out = torch.empty(16, 4096, dtype=dtype, device="meta")
            partial = torch.empty(num_splits, 16, 4096, device="meta")
            return sum_splits(partial, out[0] if has_bias else None, out)

        name = f"{DTYPE_NAMES[dtype]} {num_splits} splits" + (", bias" if has_bias else "")
        return AotConfig(name, launch)

    return config(BF16, 16, True), config(FP16, 16, False)
