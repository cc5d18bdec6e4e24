"""What the tests of the element-wise kernels share: poison, and one rule for rounding errors."""

import contextlib
import math
import sys
from collections.abc import Iterator
from unittest.mock import patch

import torch
from torch import Tensor

from tests.kernels.cases import assert_within


def assert_rounded_once(got: Tensor, want: Tensor, fp32_error: Tensor | float, what: str) -> None:
    """`got` is the exact `want` (fp64) with the given error of fp32 arithmetic, rounded once to its dtype."""
    format_ = torch.finfo(got.dtype)
    # Of p significant bits 2^-p of the number; below the smallest normal one half a step.
    once = format_.eps / 2 * want.abs() + format_.smallest_normal * format_.eps / 2
    # The second rounding starts from a value already off by fp32_error; hence the factor.
    assert_within(got, want, (once + fp32_error) * 1.001, what)


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """What `torch.empty` gives inside is filled with NaN (or the largest integer), so unwritten outputs show."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def kept_workspace(module, fill: float = math.nan, guard: int = 0) -> Iterator[list[Tensor]]:
    """The memory for partial results that `module` asks for, filled before, with `guard` elements more behind it."""
    kept: list[Tensor] = []

    def new_workspace(numel: int, device: torch.device) -> Tensor:
        kept.append(torch.full((numel + guard,), fill, device=device))
        return kept[-1][:numel]

    in_splits = getattr(module, "in_splits", None)  # which asks for the linear kernels
    asking = sys.modules[in_splits.__module__] if in_splits else module
    with patch.object(asking, "new_workspace", new_workspace):
        yield kept


Q_MAX = {"int8": 127.0, "fp8_e4m3": 448.0}
DATA_DTYPE = {"int8": torch.int8, "fp8_e4m3": torch.uint8}


class GuardedCache:
    """One of K, V: a cache [N, H_kv, page, D] that is a strided view into a larger poisoned buffer, and its scales.

    `check` compares the whole buffer, so that a write outside the expected slots shows wherever it lands. Memory before
    the cache belongs to the buffer: a negative slot does no harm.
    """

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, kv_format: str, device: str) -> None:
        num_blocks, num_kv_heads, page, head_dim = shape
        self.kv_format, self.poison = kv_format, math.nan if kv_format == "none" else 0x5A
        whole = num_blocks + 4, num_kv_heads, page + 1, head_dim + 8
        self.buffer = torch.full(whole, self.poison, dtype=DATA_DTYPE.get(kv_format, dtype), device=device)
        self.scale_buffer = torch.full((num_blocks + 4, num_kv_heads, page + 3), math.nan, device=device)
        self.inner = slice(2, -2), slice(None), slice(page), slice(head_dim)
        self.cache = self.buffer[self.inner]
        self.scale = None if kv_format == "none" else self.scale_buffer[self.inner[:3]]

    def check(self, expected: dict[int, Tensor], what: str, fp32_error: float) -> None:
        """Slots hold what is expected, fp64 [H_kv, D] each; all else is as it was."""
        buffer, scale_buffer = self.buffer.cpu(), self.scale_buffer.cpu()
        cache, scale, page = buffer[self.inner], scale_buffer[self.inner[:3]], self.inner[2].stop
        for slot, want in expected.items():
            data, row_scale = cache[slot // page, :, slot % page], scale[slot // page, :, slot % page]
            if self.kv_format == "none":
                assert_rounded_once(data, want, fp32_error, f"{what} at slot {slot}")
            else:
                self._check_quantised(data, row_scale, want, f"{what} at slot {slot}")
            # Put back what was there.
            data.fill_(self.poison)
            row_scale.fill_(math.nan)
        assert (buffer.isnan() if self.kv_format == "none" else buffer == self.poison).all(), (
            f"{what}: written elsewhere"
        )
        assert scale_buffer.isnan().all(), f"{what}: scale written elsewhere"

    def _check_quantised(self, data: Tensor, row_scale: Tensor, want: Tensor, what: str) -> None:
        """absmax is the scale's q_max-fold, and every element is the nearest the format has."""
        # 2e-6: the absmax of rows that were rotated in fp32, and a division.
        expected_scale = (want.abs().amax(-1) / Q_MAX[self.kv_format]).float()
        torch.testing.assert_close(row_scale, expected_scale, rtol=2e-6, atol=1e-32, msg=lambda m: f"{what} scale: {m}")
        codes = data.view(torch.float8_e4m3fn) if self.kv_format == "fp8_e4m3" else data
        got, step = codes.double() * row_scale[:, None].double(), row_scale[:, None].double()
        allowed = 0.5 * step
        if self.kv_format == "fp8_e4m3":  # 4 significant bits; subnormals: half a step
            allowed = torch.maximum(2.0**-4 * want.abs(), 2.0**-10 * step)
        bad = ~((got - want).abs() <= allowed * (1 + 1e-4) + 1e-29)
        assert not bad.any(), f"{what}: {int(bad.sum())} of {bad.numel()} elements are not the nearest code"


def new_kv(
    num_heads: int, num_kv_heads: int, head_dim: int, num_tokens: int, dtype: torch.dtype, device: str, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as strided views of one fused tensor, with very large, very small and all-zero rows among them.

    Around them lie a row, and 8 columns, that belong to nobody; `q._base` is all of it.
    """
    rng = torch.Generator().manual_seed(seed)
    qkv = torch.randn(num_tokens + 2, num_heads + 2 * num_kv_heads, head_dim, generator=rng)
    qkv[1::3] *= 30
    qkv[2::4] *= 1e-3
    qkv[3, -1] = 0
    qkv = torch.nn.functional.pad(qkv.flatten(1), (0, 8)).to(device, dtype)[1:-1, :-8]
    q, k, v = qkv.split([num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim], dim=1)
    return tuple(x.unflatten(1, (-1, head_dim)) for x in (q, k, v))


def awkward_slots(num_tokens: int, num_slots: int, page: int, seed: int = 0) -> list[int]:
    """Distinct slots, the first and the last of the cache among them, and two negative ones."""
    order = torch.randperm(num_slots - 2, generator=torch.Generator().manual_seed(seed)) + 1
    slots = [num_slots - 1, -1, 0, *order.tolist()][:num_tokens]
    slots[-2] = -page - 3
    return slots
