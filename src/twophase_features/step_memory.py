"""Memory that a step needs besides weights and K/V: kept free on a GPU, and counted by `twophase plan`.

A shape has the size fields of a config.json (`ModelConfig`, or the `ModelShape` of `twophase plan`); under tensor
parallelism, the sizes of one rank's part. Nothing heavy is imported.
"""

from typing import TYPE_CHECKING, Any

from twophase.model.config import ModelConfig
from twophase.scheduling.limits import SchedulerConfig

if TYPE_CHECKING:
    import torch

SCORED_ROWS = 64  # prompt positions whose logits exist at the same time, before any row is sampled
SAMPLING_COPIES = 4  # copies of a row's logits in float32: logits, scaled, sorted, probabilities


def activation_bytes(shape: Any, num_tokens: int, num_rows: int, value_bytes: int) -> int:
    """Bytes that a step may need besides weights and K/V, added up as if nothing were freed in between.

    Per token: the residual stream three times (old, new, normed), q, k, v, attention's output, gate, up and their
    product. With experts, for each of a token's experts: gate, up, product and five hidden vectors (inputs and outputs,
    sorted or not, and sent between ranks), and a weighted one in float32; per token router logits and probabilities in
    float32. Per sampled row: `SAMPLING_COPIES` of its logits in float32, and at least `SCORED_ROWS` rows, for prompt
    log-probabilities. The memory of libraries is in the share that the pool does not get.

    Worked example: hidden 8, MLP 16, one head of 4 and one K/V head, vocabulary 10, 2 bytes, 5 tokens, 100 rows:
    5 * (24 + 16 + 48) * 2 = 880 bytes, and 100 * 4 * 4 * 10 = 16,000 of logits.

    Args:
        shape: hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size; and experts, which is
            None or has num_experts, num_experts_per_tok and intermediate_size.
        num_tokens, num_rows, value_bytes: Tokens of the step, sampled rows, bytes of an activation.
    """
    attention = shape.head_dim * (2 * shape.num_heads + 2 * shape.num_kv_heads)
    per_token = 3 * shape.hidden_size + attention + 3 * shape.intermediate_size
    in_float32 = 0
    if shape.experts is not None:
        k = shape.experts.num_experts_per_tok
        per_token += k * (3 * shape.experts.intermediate_size + 5 * shape.hidden_size)
        in_float32 = k * shape.hidden_size + 2 * shape.experts.num_experts
    logits = max(num_rows, SCORED_ROWS) * SAMPLING_COPIES * 4 * shape.vocab_size
    return num_tokens * (per_token * value_bytes + 4 * in_float32) + logits


def step_bytes(model: ModelConfig, limits: SchedulerConfig, dtype: "torch.dtype") -> int:
    """Bytes that the largest step may need besides weights and K/V; `model` is this rank's part."""
    return activation_bytes(model, limits.max_num_batched_tokens, limits.max_num_seqs, dtype.itemsize)
