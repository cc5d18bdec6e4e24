"""Bytes, as arithmetic on a model's sizes: the one place for the engine, which allocates them, and the planner, which
does not. Nothing heavy is imported.

A shape here is what has the sizes of a config.json under their names (`ModelConfig`, `ModelShape`); of a model that
several ranks share, that of one rank's part.
"""

from typing import Protocol, runtime_checkable

SCALE_BYTES = 4  # of a scale, one for each token and head, for K and for V: float32
ROW_ALIGNMENT_BYTES = 16  # GPUs load 16 bytes at a time, and Triton does so only when every row starts at a multiple
MLP_UNIT = 16  # rows of the MLP that stay together when ranks share them; theirs then start at multiples of 16 bytes
SAMPLING_COPIES = 4  # of a row's logits in float32: logits, scaled, sorted, probabilities
SCORED_ROWS = 64  # prompt positions whose logits are there at the same time, before any row is sampled


@runtime_checkable
class ExpertSizes(Protocol):
    """Of a mixture of experts."""

    @property
    def num_experts(self) -> int: ...
    @property
    def num_experts_per_tok(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...


@runtime_checkable
class Sizes(Protocol):
    """What a step's arrays depend on."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def experts(self) -> ExpertSizes | None: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, value_bytes: int, scale_bytes: int) -> int:
    """K, V and their scales of a token, in all layers. `scale_bytes` is 0 unless they are quantised."""
    return 2 * num_layers * num_kv_heads * (head_dim * value_bytes + scale_bytes)


def activation_bytes(shape: Sizes, num_tokens: int, num_rows: int, value_bytes: int) -> int:
    """What a step may need besides weights and K/V, added up as if nothing were freed in between.

    Per token the residual stream three times (old, new, normed), q, k, v, the attention's output, gate, up and their
    product. With experts, for each of a token's the same three, the hidden values that go in and come out, sorted and
    not, twice where they travel between ranks, and weighted in float32; of the router logits and probabilities in
    float32. Per row that samples, `SAMPLING_COPIES` of its logits in float32, and for prompts' log-probabilities room
    for `SCORED_ROWS` at least. What libraries take for themselves is left to the share of memory that the pool does
    not get.

    Worked example: hidden 8, MLP 16, one head of 4 and one K/V head, vocabulary 10, 2 bytes, 5 tokens, 100 rows:
    5 * (24 + 16 + 48) * 2 = 880 bytes, and 100 * 4 * 4 * 10 = 16,000 of logits.

    Args:
        num_tokens: In the step.
        num_rows: That are sampled.
        value_bytes: Of an activation.
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
