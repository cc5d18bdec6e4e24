"""Which features do not go together, and why; every other pair works.

The engine asks `check_pairs` when an option switches one of these features on, or the model has one. The tests run all
pairs that work, and the documentation prints the refusals.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError


class Feature(NamedTuple):
    """A feature that some other one excludes.

    Attributes:
        option: As a user writes it, for messages.
        is_on: Whether an engine of this configuration has it. No option of the engine switches 'mixed' and
            'disaggregated' on.
    """

    option: str
    is_on: Callable[[EngineConfig], bool] = lambda config: False


FEATURES: Mapping[str, Feature] = {
    "draft_model": Feature(
        "the draft model of speculative_config",
        lambda config: config.speculative_config is not None and config.speculative_config.method == "draft_model",
    ),
    "own_drafter": Feature("drafter", lambda config: config.drafter is not None),
    "window": Feature(
        "sliding_window (with num_attention_sinks)",
        lambda config: config.sliding_window is not None or config.num_attention_sinks > 0,
    ),
    "mixed": Feature("a model with layers that see all keys and others that see a window"),
    "expert_parallel": Feature(
        "enable_expert_parallel", lambda config: config.enable_expert_parallel and config.tensor_parallel_size > 1
    ),
    "tensor_parallel": Feature("tensor_parallel_size", lambda config: config.tensor_parallel_size > 1),
    "disaggregated": Feature("disaggregation"),
    "ready_made": Feature(
        "attention_backend, a ready-made one,", lambda config: hasattr(config.attention_backend, "attend")
    ),
}

_PASS_A_NAME = "pass a name, or a function that makes one for the AttentionSpec that it is given"
_ALL_HEADS = (
    "a ready-made attention backend computes all heads of the model, but each rank has only some of them; "
    f"{_PASS_A_NAME}"
)
_ALL_BLOCKS = "a prefill worker sends all blocks of a prompt"
_ONE_RANK = "disaggregation has one rank per engine"
REFUSALS: Mapping[tuple[str, str], str] = {
    ("draft_model", "own_drafter"): "both propose drafts; pass one",
    ("draft_model", "mixed"): "a draft model shares the target model's blocks, which here belong to groups of layers",
    ("draft_model", "window"): "a draft model reads the target's blocks late, when a window may have freed them",
    ("window", "mixed"): "the model's sliding layers have their own window, and its other layers see all keys",
    ("window", "disaggregated"): f"{_ALL_BLOCKS}, and a window frees some of them during prefill",
    ("window", "ready_made"): f"a ready-made attention backend was made without the window; {_PASS_A_NAME}",
    ("mixed", "expert_parallel"): "no supported model has both",
    ("mixed", "disaggregated"): f"{_ALL_BLOCKS}, and sliding layers free some of them during prefill",
    ("mixed", "ready_made"): f"a ready-made attention backend was made for one kind of layer; {_PASS_A_NAME}",
    ("expert_parallel", "disaggregated"): _ONE_RANK,
    ("expert_parallel", "ready_made"): _ALL_HEADS,
    ("tensor_parallel", "disaggregated"): _ONE_RANK,
    ("tensor_parallel", "ready_made"): _ALL_HEADS,
}


def check_pairs(config: EngineConfig, also: Collection[str] = ()) -> None:
    """Refuse two features that do not go together.

    Args:
        also: Names of features that are on and no option of the engine: 'disaggregated', 'mixed'.

    Raises:
        ConfigError: Names both and the reason.
    """
    on = {name for name, feature in FEATURES.items() if name in also or feature.is_on(config)}
    for (one, other), reason in REFUSALS.items():
        if {one, other} <= on:
            raise ConfigError(f"{FEATURES[one].option} and {FEATURES[other].option} do not go together: {reason}.")
