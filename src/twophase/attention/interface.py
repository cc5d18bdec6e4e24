"""The interface between the model and the backend that computes its attention."""

import abc
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from twophase.cache.kv_cache import LayerKV
from twophase.model.ops import Ops


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Shape, scale and window of a model's attention; the same for all its layers.

    Attributes:
        num_heads, num_kv_heads: H and H_kv; query head h reads KV head h // (H // H_kv).
        head_dim: D.
        scale: Factor on Q.K, as a rule 1 / sqrt(D).
        window: Sliding window: a query at position i sees keys at positions (i - window, i]; None sees all.
        num_sinks: Besides the window, keys at positions [0, num_sinks) stay visible (attention sinks,
            arXiv:2309.17453).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    num_sinks: int = 0


class AttentionBackend(Ops, abc.ABC):
    """Paged attention for one model on one device. Implementations are final.

    A step calls `plan` once, then for each layer `write` and `attend`. A backend with kernels for them also overrides
    `Ops`. No method keeps state between steps.
    """

    name: str
    max_decode_len: int = 1  # tokens of one sequence that are computed like a decode: the newest, and drafts to verify

    @abc.abstractmethod
    def plan(self, batch: AttentionBatch) -> Any:
        """Gather indices, masks, launch shapes: shared by the step's layers, and passed to `write` and `attend`."""

    @abc.abstractmethod
    def write(
        self,
        q: Float[Tensor, "T H D"],
        k: Float[Tensor, "T H_kv D"],
        v: Float[Tensor, "T H_kv D"],
        cos: Float[Tensor, "P D/2"],
        sin: Float[Tensor, "P D/2"],
        kv: LayerKV,
        plan: Any,
    ) -> Float[Tensor, "T H D"]:
        """Rotate q and k by their positions (RoPE, arXiv:2104.09864, half-split pairs) and write k, v into pages.

        `cos` and `sin` hold one row per position. Mutates `kv`; q and k may be overwritten. Returns the rotated q.
        """

    @abc.abstractmethod
    def attend(self, q: Float[Tensor, "T H D"], kv: LayerKV, plan: Any) -> Float[Tensor, "T H D"]:
        """Causal attention of each new token over its sequence's pages, this step's tokens included."""
