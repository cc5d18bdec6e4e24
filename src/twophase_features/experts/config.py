"""Reads a mixture of experts from config.json: Mixtral (arXiv:2401.04088) and Qwen3-MoE (arXiv:2505.09388)."""

from dataclasses import dataclass

from twophase.core.rules import shown
from twophase.model.config import SILU, Family, num_layers_of, read_attention_bias, read_rope
from twophase.model.json_file import Fields, JsonFile, KeyRule
from twophase_features.families import WINDOW_DEFAULTS
from twophase_features.windows.layer_types import read_given_window, read_switched_for_all

MAX_EXPERTS = 2**16  # experts in all layers together, listed one by one; Qwen3-235B-A22B has 12,032


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts: in some layers the MLP is one of several, which a router chooses for each token.

    Attributes:
        num_experts: E, in each of these layers.
        num_experts_per_tok: K, the experts that process a token.
        intermediate_size: The size of one expert.
        norm_topk_prob: Whether the probabilities of a token's K experts are divided by their sum.
        sparse_layers: The numbers of the layers that have experts; the others have one MLP.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    sparse_layers: tuple[int, ...]


def read_mixtral(file: JsonFile) -> Fields:
    """Every layer has experts."""
    return _read(file, file.positive_int("intermediate_size"), True, tuple(range(num_layers_of(file))))


def read_qwen3_moe(file: JsonFile) -> Fields:
    """Every `decoder_sparse_step`-th layer has experts, except the layers in `mlp_only_layers`."""
    step, dense = file.positive_int("decoder_sparse_step"), file.values.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise file.error(f"'mlp_only_layers' must be a list of layers' numbers, found {shown(dense)}.")
    never = set(dense)
    sparse = tuple(layer for layer in range(num_layers_of(file)) if (layer + 1) % step == 0 and layer not in never)
    return _read(file, file.positive_int("moe_intermediate_size"), file.flag("norm_topk_prob"), sparse)


def _read(file: JsonFile, size: int, norm_topk_prob: bool, sparse_layers: tuple[int, ...]) -> Fields:
    count, per_token = _num_experts(file), file.positive_int("num_experts_per_tok")
    file.refuse_if(per_token > count, f"num_experts_per_tok {per_token} is more than the {count} experts there are.")
    experts = ExpertsConfig(count, per_token, size, norm_topk_prob, sparse_layers)
    return {"experts": experts if sparse_layers else None}


def _num_experts(file: JsonFile) -> int:
    """The number of experts, under the name in the hub's files or under transformers 5's; a file may have both."""
    names = [key for key in ("num_experts", "num_local_experts") if file.values.get(key) is not None]
    counts = {file.positive_int(key) for key in names or ["num_experts"]}
    file.refuse_if(len(counts) > 1, "num_experts and num_local_experts must agree; found two numbers.")
    count, num_layers = counts.pop(), num_layers_of(file)
    file.refuse_if(
        count * num_layers > MAX_EXPERTS,
        f"the number of experts must be at most {MAX_EXPERTS:,} in all layers together, found {count:,} in each of "
        f"{num_layers:,} layers.",
    )
    return count


UNSUPPORTED_MOE = "is not supported: only a softmax router over one group of experts, without shared experts, is."
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size")
# Keys of unsupported mixtures of experts, with the values that change nothing.
RULES = (
    SILU,
    KeyRule("scoring_func", (None, "softmax"), UNSUPPORTED_MOE),
    KeyRule("routed_scaling_factor", (None, 1), UNSUPPORTED_MOE),
    *(KeyRule(key, (None, False, 0, 1), UNSUPPORTED_MOE) for key in ("n_group", "topk_group")),
    *(KeyRule(key, (None, False, 0), UNSUPPORTED_MOE) for key in SHARED_EXPERTS),
)
MIXTRAL_DEFAULTS = {"head_dim": None, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0}
QWEN3_MOE_DEFAULTS = WINDOW_DEFAULTS | {"max_window_layers": 0, "decoder_sparse_step": 1, "norm_topk_prob": False}
FAMILIES = {
    "MixtralForCausalLM": Family(
        "mixtral", (read_rope, read_given_window, read_mixtral), defaults=MIXTRAL_DEFAULTS, rules=RULES
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe",
        (read_rope, read_attention_bias, read_switched_for_all, read_qwen3_moe),
        {"qk_norm": True},
        QWEN3_MOE_DEFAULTS,
        RULES,
    ),
}
