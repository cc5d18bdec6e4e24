"""Random ragged histories played through a backend, and a dense oracle that knows nothing of pages."""

import math
import random
from dataclasses import dataclass

import torch

from tests.cache.shadow import is_visible
from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import pack
from twophase_features.windows.sliding_window import FREED, SlidingWindow

# Largest absolute error allowed on outputs of size about 1, against an oracle in float64.
TOLERANCE = {
    torch.float32: 2e-5,  # a few thousand fp32 additions in another order
    torch.float16: 1e-2,  # cos, sin, rotated q and k rounded to 11 bits: scores of size 20 are off by about 0.01
    torch.bfloat16: 8e-2,  # ... to 8 bits
}
# The same with quantised K/V, relative to the norm of the output: measured 0.6 % and 2.6 %, see kernels.md's numerics.
QUANTISED_TOLERANCE = {"int8": 0.02, "fp8_e4m3": 0.06}


@dataclass
class Sequence:
    """All tokens a sequence will ever have, unrotated, and its pages."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    block_ids: list[int]
    num_computed: int = 0


class History:
    """Sequences of the given lengths over one layer's pages, which start out full of NaN."""

    def __init__(self, spec, lengths, *, block_size=16, dtype=torch.float32, kv_format="none", seed=0, device="cpu"):
        self.spec, self.block_size, self.dtype = spec, block_size, dtype
        self.device = torch.device(device)
        generator = torch.Generator().manual_seed(seed)
        pages = [-(-length // block_size) for length in lengths]
        block_ids = list(range(sum(pages) + 3))
        random.Random(seed).shuffle(block_ids)
        self.sequences = []
        for length, num_pages in zip(lengths, pages, strict=True):
            # Queries times 4 make the softmax peaky: with a flat one a dropped key goes unnoticed.
            q, k, v = (
                torch.randn(length, heads, spec.head_dim, generator=generator).mul(gain).to(self.device, dtype)
                for heads, gain in ((spec.num_heads, 4), (spec.num_kv_heads, 1), (spec.num_kv_heads, 1))
            )
            self.sequences.append(Sequence(q, k, v, [block_ids.pop() for _ in range(num_pages)]))
        kv_spec = KVCacheSpec(1, spec.num_kv_heads, spec.head_dim, block_size, dtype, kv_format)
        self.kv = KVCache(kv_spec, sum(pages) + 3, self.device).layers[0]
        self._poison(slice(None))
        angles = torch.arange(max(lengths))[:, None] * 10000 ** -(torch.arange(0, spec.head_dim, 2) / spec.head_dim)
        self.cos, self.sin = angles.cos().to(self.device), angles.sin().to(self.device)

    def step(self, backend: AttentionBackend, counts: dict[int, int]) -> dict[int, torch.Tensor]:
        """Compute `counts[s]` further tokens of each sequence s; single tokens go first, as decodes."""
        order = sorted(counts, key=lambda s: counts[s] != 1)
        chosen = [self.sequences[s] for s in order]
        starts, lens = [sequence.num_computed for sequence in chosen], [counts[s] for s in order]
        chunks = [
            ScheduledChunk(s, [0] * n, sequence.num_computed, sequence.block_ids, 0)
            for s, n, sequence in zip(order, lens, chosen, strict=True)
        ]
        q, k, v = (
            torch.cat([getattr(x, name)[a : a + n] for x, a, n in zip(chosen, starts, lens, strict=True)])
            for name in "qkv"
        )
        plan = backend.plan(pack(chunks, self.block_size, device=self.device).view())
        q = backend.write(q, k, v, self.cos, self.sin, self.kv, plan)
        out = backend.attend(q, self.kv, plan)
        for sequence, n in zip(chosen, lens, strict=True):
            sequence.num_computed += n
        return dict(zip(order, out.split(lens), strict=True))

    def free_unseen(self) -> None:
        """Take away, and fill with NaN, each page of which no query to come sees a key."""
        window = SlidingWindow(self.spec.window, self.spec.num_sinks)
        for sequence in self.sequences:
            n, size = sequence.num_computed, self.block_size
            for index in range(n // size):
                is_seen = any(is_visible(p, n, window) for p in range(index * size, (index + 1) * size))
                if not is_seen and sequence.block_ids[index] != FREED:
                    self._poison(sequence.block_ids[index])
                    sequence.block_ids[index] = FREED

    def _poison(self, pages) -> None:
        for tensor in (self.kv.k, self.kv.v, self.kv.k_scale, self.kv.v_scale):
            if tensor is not None:
                # 0x7f is NaN in e4m3 and the largest value in int8, whose scale is NaN.
                tensor[pages] = 0x7F if tensor.dtype in (torch.uint8, torch.int8) else math.nan

    def oracle(self, s: int) -> torch.Tensor:
        """Dense attention of every token of sequence s, in float64."""
        sequence, spec = self.sequences[s], self.spec
        length, group = sequence.q.shape[0], spec.num_heads // spec.num_kv_heads
        q, k = (self._rotated(x.double()) for x in (sequence.q, sequence.k))
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, sequence.v.double()))
        scores = torch.einsum("ihd,jhd->hij", q, k) * spec.scale
        i, j = torch.arange(length)[:, None], torch.arange(length)[None]
        visible = j <= i
        if spec.window is not None:
            visible &= (j > i - spec.window) | (j < spec.num_sinks)
        scores = scores.masked_fill(~visible.to(self.device), -math.inf)
        return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = (table[: x.shape[0], None].double() for table in (self.cos, self.sin))
        x1, x2 = x.chunk(2, -1)
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)


def make_spec(num_heads=6, num_kv_heads=2, head_dim=64, window=None, num_sinks=0) -> AttentionSpec:
    return AttentionSpec(num_heads, num_kv_heads, head_dim, head_dim**-0.5, window, num_sinks)


def assert_close(history: History, s: int, out: torch.Tensor, first: int, tolerance: float) -> None:
    """Outputs of tokens [first, first + len(out)) of sequence s; says where the first difference is."""
    error = (out.double() - history.oracle(s)[first : first + out.shape[0]]).abs()
    bad = ~(error <= tolerance)  # NaN is bad
    if bad.any():
        token, head, _ = torch.nonzero(bad)[0].tolist()
        raise AssertionError(
            f"sequence {s}, position {first + token}, head {head}: off by {error[token, head].max():.3g}, "
            f"allowed {tolerance:.0e}"
        )
