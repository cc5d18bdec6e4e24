"""The time to the first token of SmolLM2, the operations behind it, and attention alone in three ways."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from twophase import SamplingParams
from twophase_labs.kit.timing import seconds
from twophase_labs.machine.kernels import device

if TYPE_CHECKING:
    from twophase import LLM

BLOCK_SIZE = 16
LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, MLP, VOCAB = 30, 9, 3, 64, 576, 1536, 49152


@cache
def open_engine(tokens_per_step: int = 512) -> "LLM":
    """The engine with its own attention, in float32, which computes so many tokens in a step."""
    from twophase import LLM  # imports triton, and `twophase_labs.machine.kernels` has to come first

    return LLM(
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_kv_blocks=64,
        max_num_seqs=4,
        max_num_batched_tokens=tokens_per_step,
        enable_prefix_caching=False,
    )


def time_first_token(num_tokens: int, repeats: int = 1) -> float:
    """Seconds from a prompt of so many tokens to the first token of the answer."""
    llm = open_engine()
    ids = [1 + (7 * i) % 1000 for i in range(num_tokens)]
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    return seconds(lambda: llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False), repeats)


def first_token_ratio(longer: int = 512, shorter: int = 64) -> float:
    """How many times as long the longer prompt's first token takes, on this machine."""
    time_first_token(16)  # the first call prepares things
    return time_first_token(longer, repeats=2) / time_first_token(shorter, repeats=4)


def count_prefill_flops(num_tokens: int, parts: bool = False) -> Any:
    """Operations of a prefill of SmolLM2, a multiply-add counting two; with `parts` (linear layers, attention).

    Attention counts the pairs of a query and a key that it sees; logits are computed for the last token only.
    """
    per_token = 2 * LAYERS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV_HEADS * HEAD_DIM + 3 * HIDDEN * MLP)
    linear = num_tokens * per_token + 2 * HIDDEN * VOCAB
    attention = LAYERS * 4 * HEADS * HEAD_DIM * (num_tokens * (num_tokens + 1) // 2)
    return (linear, attention) if parts else linear + attention


def naive_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[H, L, D] each; makes the whole matrix of scores."""
    hidden = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v


def compare_attention(
    prefill: Callable[..., Tensor], lengths: Sequence[int]
) -> list[tuple[int, tuple[float, float, float], int]]:
    """Per length: seconds of naive attention, SDPA and `prefill`, and the bytes of the naive one's scores."""
    rows = []
    for length in lengths:
        generator = torch.Generator().manual_seed(length)
        q, k, v = (
            torch.randn(length, n, HEAD_DIM, generator=generator).to(device) for n in (HEADS, KV_HEADS, KV_HEADS)
        )
        q_h, k_h, v_h = (x.transpose(0, 1).contiguous() for x in (q, k, v))
        k_g, v_g = (x.repeat_interleave(HEADS // KV_HEADS, dim=0) for x in (k_h, v_h))
        paged = (*_in_pages(k, v), *_one_sequence(length))
        calls: tuple[Callable[[], Tensor], ...] = (
            partial(naive_attention, q_h, k_g, v_g),
            partial(F.scaled_dot_product_attention, q_h, k_h, v_h, is_causal=True, enable_gqa=True),
            partial(prefill, q, *paged, HEAD_DIM**-0.5),
        )
        naive, sdpa, own = (seconds(partial(_finish, call), repeats=2) for call in calls)
        rows.append((length, (naive, sdpa, own), HEADS * length * length * 4))
    return rows


def _in_pages(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """[L, H_kv, D] as caches [N, H_kv, page, D] whose pages are in order."""
    num_pages = -(-len(k) // BLOCK_SIZE)
    padded = [F.pad(x, (0, 0, 0, 0, 0, num_pages * BLOCK_SIZE - len(x))) for x in (k, v)]
    k_cache, v_cache = (x.view(num_pages, BLOCK_SIZE, KV_HEADS, HEAD_DIM).transpose(1, 2).contiguous() for x in padded)
    return k_cache, v_cache


def _one_sequence(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Block table, sequence length and cumulative query lengths of one prompt."""
    table = torch.arange(-(-length // BLOCK_SIZE), dtype=torch.int32, device=device)[None]
    seq_lens, cu_query_lens = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([length], [0, length]))
    return table, seq_lens, cu_query_lens


def _finish(call: Callable[[], Tensor]) -> None:
    if call().is_cuda:
        torch.cuda.synchronize()
