"""The engine as lab 2 runs it, with the learner's pieces in it."""

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from twophase import SamplingParams
from twophase.attention.interface import AttentionBackend, AttentionBatch, AttentionSpec
from twophase.cache.kv_cache import LayerKV
from twophase_labs.kit.own_attention import OwnAttention, OwnPlan
from twophase_labs.kit.timing import seconds

BLOCK_SIZE = 16


@final
class OwnPieces(AttentionBackend):
    """A learner's slots, write, prefill and norm in the engine; the decode steps are the engine's own until lab 3.

    Args:
        slots: (block table [W], first position, end, block size) -> slots int64 [end - first].
        write, prefill: As `OwnAttention` takes them.
        norm: (x [T, N], residual [T, N], weight [N], eps) -> (y, h), both [T, N].

    Attributes:
        num_calls: How often each piece was called.
    """

    name = "own pieces"

    def __init__(
        self,
        spec: AttentionSpec,
        *,
        slots: Callable[..., Tensor],
        write: Callable[..., None],
        prefill: Callable[..., Tensor],
        norm: Callable[..., tuple[Tensor, Tensor]],
    ) -> None:
        self._own = OwnAttention(spec, BLOCK_SIZE, write=write, prefill=prefill)
        self._slots, self._norm = slots, norm
        self._num_calls: Counter[str] = Counter()

    @property
    def num_calls(self) -> dict[str, int]:
        return dict(self._num_calls + self._own.num_calls)

    def plan(self, batch: AttentionBatch) -> OwnPlan:
        parts = []
        for table, length, num_new in zip(batch.block_tables, batch.seq_lens_host, batch.query_lens_host, strict=True):
            parts.append(self._slots(table, length - num_new, length, BLOCK_SIZE))
            self._num_calls["slots"] += 1
        return self._own.plan(replace(batch, slot_mapping=torch.cat(parts).to(batch.slot_mapping.device)))

    def write(
        self,
        q: Float[Tensor, "T H D"],
        k: Float[Tensor, "T H_kv D"],
        v: Float[Tensor, "T H_kv D"],
        cos: Float[Tensor, "P D/2"],
        sin: Float[Tensor, "P D/2"],
        kv: LayerKV,
        plan: OwnPlan,
    ) -> Float[Tensor, "T H D"]:
        return self._own.write(q, k, v, cos, sin, kv, plan)

    def attend(self, q: Float[Tensor, "T H D"], kv: LayerKV, plan: OwnPlan) -> Float[Tensor, "T H D"]:
        return self._own.attend(q, kv, plan)

    def rmsnorm(
        self, x: Float[Tensor, "T N"], residual: Float[Tensor, "T N"] | None, weight: Float[Tensor, "N"], eps: float
    ) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
        self._num_calls["norm"] += 1
        return self._norm(x, torch.zeros_like(x) if residual is None else residual, weight, eps)


def prompt_rate(llm: Any, num_prompt: int = 256) -> float:
    """Tokens of a prompt that `llm` reads per second, after a shorter one, for which kernels compile."""
    params = SamplingParams(temperature=0, max_tokens=1)

    def read(first: int, num_tokens: int) -> None:
        llm.generate([{"prompt_token_ids": list(range(first, first + num_tokens))}], params, use_tqdm=False)

    read(1_000, num_prompt // 4)
    return num_prompt / seconds(lambda: read(2_000, num_prompt))


def chunked_prompt_s(size: int, num_prompt: int, **pieces: Any) -> float:
    """Seconds in which an engine with these pieces reads a prompt, `size` tokens in a step at most."""
    llm = open_own_engine(max_num_batched_tokens=size, max_num_seqs=1, **pieces)
    elapsed_s = num_prompt / prompt_rate(llm, num_prompt)
    del llm
    gc.collect()  # an engine refers to itself in circles
    return elapsed_s


def open_own_engine(max_num_batched_tokens: int = 2048, max_num_seqs: int = 8, **pieces: Any) -> Any:
    """SmolLM2 with the pieces of `OwnPieces`."""
    from twophase import LLM

    return LLM(
        attention_backend=lambda spec: OwnPieces(spec, **pieces),
        dtype="float32",
        num_kv_blocks=64,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
