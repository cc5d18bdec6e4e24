"""What every kernel test shares: tolerances with their reasons, peaky inputs, paged caches with poisoned slots, an oracle.

Nothing here calls the package under test: the oracle gathers one sequence at a time and computes in fp64, and
quantised caches are made and read back with torch's own rounding and float8 type.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

HERE = "cuda" if torch.cuda.is_available() else "cpu"  # kernels are compiled for either
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def moved(tensor: Tensor, device: str) -> Tensor:
    """A copy on `device` with the same strides: `Tensor.to` closes the gaps, and what should be refused is not."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)


class Tolerance(NamedTuple):
    """The error allowed: absolute + relative * |expected|."""

    absolute: float
    relative: float = 0.0


# Scores reach 25 in units of log2, where fp32 has steps of 2e-6. Sums of 256 products are off by several of them, and so
# are all weights, and the LSE, which never leaves fp32 whatever the dtype. (The largest met were just over 2e-5.)
SCORE_ERROR = 4e-5
# With u = 2^-p for p significant bits: rounding the weights of a row to the dtype adds at most u * max |v|, and no value
# of the normal V drawn here is beyond 5; rounding the output adds u * |out|.
TOLERANCE = {
    torch.float32: Tolerance(SCORE_ERROR),
    torch.float16: Tolerance(SCORE_ERROR + 5 * 2**-11, 2**-11),
    torch.bfloat16: Tolerance(SCORE_ERROR + 5 * 2**-8, 2**-8),
}
LSE_TOLERANCE = Tolerance(SCORE_ERROR)

# Queries are drawn this much larger than keys. With plain normal inputs the softmax is nearly uniform over hundreds of
# keys, and a kernel that drops the last token or forgets 1/sqrt(D) stays within any tolerance.
PEAKINESS = 4.0


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class PagedCase:
    """A ragged batch over a paged cache, and the same K and V per sequence for the oracle.

    Attributes:
        q: [T, H, D]; the queries of sequence s are its last `query_lens[s]` tokens.
        k_cache, v_cache: [N, H_kv, page, D]; every slot that no sequence owns holds NaN (or the worst byte), with a
            NaN scale when quantised. Page 0 is never owned: the padding of block tables points at poison.
        dense: Per sequence K, V fp64 [seq_len, H_kv, D] as the cache holds them (rounded, dequantised).
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    block_tables: Tensor
    seq_lens: Tensor
    cu_query_lens: Tensor
    dense: list[tuple[Tensor, Tensor]]
    query_lens: list[int]

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.q.shape[-1])

    @property
    def cache(self) -> tuple[Tensor, ...]:
        """The arguments that every attention kernel takes after q."""
        return self.k_cache, self.v_cache, self.block_tables, self.seq_lens

    @property
    def scales(self) -> dict[str, Tensor | None]:
        return {"k_scale": self.k_scale, "v_scale": self.v_scale}

    def alone(self, sequence: int) -> "PagedCase":
        """One sequence as a batch of its own, over the same pages."""
        first, last = sum(self.query_lens[:sequence]), sum(self.query_lens[: sequence + 1])
        own = slice(sequence, sequence + 1)
        return replace(
            self, q=self.q[first:last], block_tables=self.block_tables[own], seq_lens=self.seq_lens[own],
            cu_query_lens=self.cu_query_lens[sequence : sequence + 2] - first, dense=self.dense[own],
            query_lens=[last - first],
        )  # fmt: skip


def make_case(
    seq_lens: list[int],
    query_lens: list[int] | None = None,
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    kv_format: str = "none",
    device: str = "cpu",
    seed: int = 0,
) -> PagedCase:
    """Random tokens in random pages; one query each by default."""
    query_lens = [1] * len(seq_lens) if query_lens is None else query_lens
    num_heads, num_kv_heads = heads
    rng = generator(seed)
    q = PEAKINESS * torch.randn(sum(query_lens), num_heads, head_dim, generator=rng)
    pages_of = [-(-n // page) for n in seq_lens]
    order = 1 + torch.randperm(sum(pages_of) + 1, generator=generator(seed))  # page 0 and one more stay unowned
    table = torch.zeros(len(seq_lens), -(-max(*pages_of, 1) // 16) * 16, dtype=torch.int32)
    shape = (sum(pages_of) + 2, num_kv_heads, page, head_dim)
    caches = [_poisoned_cache(shape, dtype, kv_format) for _ in "kv"]
    dense = []
    for s, n in enumerate(seq_lens):
        start = sum(pages_of[:s])
        table[s, : pages_of[s]] = order[start : start + pages_of[s]]
        slots = [(table[s, j // page].item(), j % page) for j in range(n)]
        kv = [torch.randn(n, num_kv_heads, head_dim, generator=rng) for _ in caches]
        dense.append(tuple(_store(x, cache, slots, kv_format) for x, cache in zip(kv, caches, strict=True)))
    (k_cache, k_scale), (v_cache, v_scale) = [
        (data.to(device), None if scale is None else scale.to(device)) for data, scale in caches
    ]
    cu_query_lens = torch.tensor([0, *query_lens]).cumsum(0)
    return PagedCase(
        q.to(device, dtype), k_cache, v_cache, k_scale, v_scale, table.to(device),
        torch.tensor(seq_lens, dtype=torch.int32, device=device), cu_query_lens.to(device, torch.int32),
        dense, query_lens,
    )  # fmt: skip


def _poisoned_cache(shape: tuple[int, ...], dtype: torch.dtype, kv_format: str) -> tuple[Tensor, Tensor | None]:
    if kv_format == "none":
        return torch.full(shape, math.nan, dtype=dtype), None
    data_dtype, worst = {"int8": (torch.int8, 127), "fp8_e4m3": (torch.uint8, 0x7F)}[kv_format]
    return torch.full(shape, worst, dtype=data_dtype), torch.full(shape[:3], math.nan)


def _store(x: Tensor, cache: tuple[Tensor, Tensor | None], slots: list[tuple[int, int]], kv_format: str) -> Tensor:
    """Write x [n, H_kv, D] to its (page, offset) slots; returns what they now hold, in fp64."""
    data, scale = cache
    pages, offsets = torch.tensor(slots, dtype=torch.int64).reshape(-1, 2).unbind(1)
    if kv_format == "none":
        data[pages, :, offsets] = x.to(data.dtype)
        return x.to(data.dtype).double()
    row_scale = x.abs().amax(-1) / {"int8": 127, "fp8_e4m3": 448}[kv_format]
    normalised = x / row_scale[..., None]
    codes = normalised.round().to(torch.int8) if kv_format == "int8" else normalised.to(torch.float8_e4m3fn)
    data[pages, :, offsets] = codes if kv_format == "int8" else codes.view(torch.uint8)
    scale[pages, :, offsets] = row_scale
    return codes.double() * row_scale[..., None].double()


def far_away_case(page: int = 16, head_dim: int = 64) -> PagedCase:
    """40 tokens in an int8 cache, one head, K and V alike, whose elements have indices beyond 2^31.

    NumPy's zeros take no memory until they are touched. The cache is their second half, so that an index that wrapped
    around to a negative one reads zeros, not another process's death.
    """
    near = make_case([40], heads=(1, 1), page=page, head_dim=head_dim, kv_format="int8", device=HERE)
    num_pages = 2**31 // (page * head_dim) + 8
    cache = torch.from_numpy(np.zeros((2 * num_pages, 1, page, head_dim), np.int8)).to(HERE)[num_pages:]
    scale = torch.from_numpy(np.zeros((num_pages, 1, page), np.float32)).to(HERE)
    used = near.block_tables[0, :3].long()
    far = torch.arange(num_pages - 3, num_pages, device=HERE)
    cache[far], scale[far] = near.k_cache[used], near.k_scale[used]
    tables = torch.zeros_like(near.block_tables)
    tables[0, :3] = far
    dense = [(near.dense[0][0], near.dense[0][0])]
    return replace(
        near, k_cache=cache, v_cache=cache, k_scale=scale, v_scale=scale, block_tables=tables, dense=dense
    )  # fmt: skip


def attention_oracle(case: PagedCase, window: int | None = None, num_sinks: int = 0) -> tuple[Tensor, Tensor]:
    """(out fp64 [T, H, D], LSE base 2 fp64 [T, H]), one sequence and one query at a time. Decodes of length 0 give 0, -inf."""
    outs, lses = [], []
    for s, (k, v) in enumerate(case.dense):
        start, n_queries = sum(case.query_lens[:s]), case.query_lens[s]
        q = case.q[start : start + n_queries].double().cpu()
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))  # query head h reads KV head h // group
        for i in range(n_queries):
            position = len(k) - n_queries + i
            j = torch.arange(len(k))
            visible = j <= position
            if window is not None:
                visible &= (j > position - window) | (j < num_sinks)
            scores = torch.einsum("hd,jhd->hj", q[i], k[visible]) * case.scale
            outs.append(torch.einsum("hj,jhd->hd", scores.softmax(-1), v[visible]))
            lses.append(scores.logsumexp(-1) / math.log(2))
    return torch.stack(outs), torch.stack(lses)


def assert_within(got: Tensor, want: Tensor, allowed: Tensor, what: str) -> None:
    """|got - want| <= allowed, all of one shape; says where and by how much not. NaN never passes, -inf equals -inf."""
    got, want, allowed = got.detach().double().cpu(), want.double().cpu(), allowed.double().cpu()
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    excess = torch.where(got == want, 0.0, (got - want).abs()) - allowed.nan_to_num(posinf=0.0)
    bad = ~(excess <= 0)
    if bad.any():
        worst = excess.nan_to_num(nan=math.inf).argmax()
        index = tuple(int(i) for i in torch.unravel_index(worst, excess.shape))
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {bad.numel()} wrong; worst at {list(index)}: got {got[index]:.8g}, "
            f"expected {want[index]:.8g} +- {allowed[index]:.1e}"
        )


def assert_close(got: Tensor, want: Tensor, tolerance: Tolerance, what: str = "out") -> None:
    assert_within(got, want, tolerance.absolute + tolerance.relative * want.abs(), what)


def assert_attention(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> None:
    """(out, LSE) of a kernel against those of the oracle."""
    assert_close(got[0], want[0], TOLERANCE[got[0].dtype], "out")
    assert_close(got[1], want[1], LSE_TOLERANCE, "LSE")


Attend = Callable[..., Any]


def attend(function: Attend, case: PagedCase, **options: Any) -> Any:
    """(out, LSE) of paged_decode, or of its reference, for one query per sequence. Options may replace q."""
    options = {"scale": case.scale, **case.scales, "return_lse": True} | options
    return function(options.pop("q", case.q), *case.cache, **options)


def attend_ragged(function: Attend, case: PagedCase, **options: Any) -> Any:
    """The same of any of them, for any number of queries per sequence."""
    ragged = {"cu_query_lens": case.cu_query_lens, "max_query_len": max(case.query_lens)}
    return attend(function, case, **ragged | options)


def check_attention(how: Attend, function: Attend, case: PagedCase, **options: Any) -> None:
    """`how`, one of the two above, against the oracle."""
    got = how(function, case, **options)
    assert_attention(got, attention_oracle(case, options.get("window"), options.get("num_sinks", 0)))
