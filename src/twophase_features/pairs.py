"""Which features go together: a table FEATURE x FEATURE, read when an engine is made, printed in the documentation, and
executed by tests/engine/test_features.py, pair by pair.

A new feature is one row of `FEATURES`, and an example in tests/engine/feature_runs.py; it works with every other one
unless `_REFUSALS` says why not.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import final

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase_features.policies.named import POLICIES


@final
@dataclass(frozen=True, slots=True)
class Works:
    """Outputs are what each request gets alone with the same options, and no block is lost."""

    def __str__(self) -> str:
        return "works"


@final
@dataclass(frozen=True, slots=True)
class Refused:
    """The two are an error, and the reason is in its message.

    Attributes:
        when: 'start': the engine is not made, and no weight is read. 'request': the request is refused. 'never': they
            are two values of one option, so that they cannot be asked for together.
    """

    reason: str
    when: str = "start"

    def __str__(self) -> str:
        return "one option" if self.when == "never" else f"refused: {self.reason}"


WORKS = Works()
ONE_OPTION = Refused("two values of one option", when="never")


@final
@dataclass(frozen=True, slots=True)
class Feature:
    """Something that can be switched on.

    Attributes:
        title: In the table.
        option: As a user writes it, for messages.
        is_on: Whether an engine of this configuration has it.
        group: Of features of one group an engine has one at most.
    """

    title: str
    option: str
    is_on: Callable[[EngineConfig], bool] = lambda config: False
    group: str = ""


def _is_ready_made(config: EngineConfig) -> bool:
    return hasattr(config.attention_backend, "attend")


def _guesses(config: EngineConfig, method: str) -> bool:
    asked_for = config.speculative_config
    return asked_for is not None and asked_for.method == method and (method != "ngram" or config.drafter is None)


def _policy(name: str) -> Feature:
    policy = POLICIES[name]
    return Feature(
        f"policy: {name}",
        f"policy={policy.__name__}(...)",
        lambda config: (
            type(config.policy) is policy
            or (name == "priority" and config.policy is None and config.scheduler_factory is None)
        ),
        group="policy",
    )


def _value_of(title: str, option: str, value: str) -> Feature:
    """One value of an option that has several."""
    return Feature(title, f"{option}={value!r}", lambda config: getattr(config, option) == value, group=option)


FEATURES: Mapping[str, Feature] = {
    "prefix_caching": Feature("prefix caching", "enable_prefix_caching", lambda config: config.enable_prefix_caching),
    "salts": Feature("cache salts", "cache_salt"),
    "whole_prompts": Feature(
        "chunked prefill off", "enable_chunked_prefill=False", lambda config: not config.enable_chunked_prefill
    ),
    "priority": _policy("priority"),
    "chunked": _policy("chunked"),
    "continuous": _policy("continuous"),
    "prefill_first": _policy("prefill-first"),
    "static": _policy("static"),
    "dynamic": _policy("dynamic"),
    "deadline": _policy("deadline"),
    "rotating": _policy("rotating"),
    "fair": _policy("fair"),
    "swap": Feature(
        "preemption by swapping", "preemption_mode='swap'", lambda config: config.preemption_mode == "swap"
    ),
    "optimistic": _value_of("admission: optimistic", "admission", "optimistic"),
    "reserve": _value_of("admission: reserve", "admission", "reserve"),
    "estimate": _value_of("admission: estimate", "admission", "estimate"),
    "watermark": Feature("admission watermark", "admission_watermark", lambda config: config.admission_watermark > 0),
    "several": Feature("n > 1", "n"),
    "stop": Feature("stop strings", "stop"),
    "prompt_logprobs": Feature("prompt log-probabilities", "prompt_logprobs"),
    "guided": Feature("guided decoding", "structured_outputs"),
    "ngram": Feature(
        "n-gram drafter",
        "speculative_config(method='ngram')",
        lambda config: _guesses(config, "ngram"),
        group="drafter",
    ),
    "draft_model": Feature(
        "draft model",
        "the draft model of speculative_config",
        lambda config: _guesses(config, "draft_model"),
        group="drafter",
    ),
    "own_drafter": Feature("own drafter", "drafter", lambda config: config.drafter is not None),
    "window": Feature(
        "sliding window, sinks",
        "sliding_window (with num_attention_sinks)",
        lambda config: config.sliding_window is not None or config.num_attention_sinks > 0,
    ),
    "mixed": Feature("layers of different kinds", "a model with layers that see all keys and others that see a window"),
    "int8_weights": _value_of("int8 weights", "quantization", "int8"),
    "int8_dynamic_weights": _value_of("int8_dynamic weights", "quantization", "int8_dynamic"),
    "int8": _value_of("int8 K/V", "kv_cache_dtype", "int8"),
    "fp8": _value_of("fp8_e4m3 K/V", "kv_cache_dtype", "fp8_e4m3"),
    "expert_parallel": Feature(
        "expert parallel",
        "enable_expert_parallel",
        lambda config: config.enable_expert_parallel and config.tensor_parallel_size > 1,
    ),
    "tensor_parallel": Feature(
        "tensor parallel", "tensor_parallel_size", lambda config: config.tensor_parallel_size > 1
    ),
    "disaggregated": Feature("disaggregated", "disaggregation"),
    "triton": _value_of("Triton backend", "attention_backend", "triton"),
    "ready_made": Feature(
        "ready-made attention backend",
        "attention_backend, a ready-made one,",
        _is_ready_made,
        group="attention_backend",
    ),
    "no_tokenizer": Feature("no tokenizer", "skip_tokenizer_init=True", lambda config: config.skip_tokenizer_init),
}

_TEXT_NEEDED = Refused("it is about text, and without a tokenizer there is none", when="request")
_ONE_RANK = Refused("disaggregation has one rank per engine")
_ALL_HEADS = Refused(
    "a ready-made attention backend was made for all heads of the model, and each rank has some of them; pass a name, "
    "or a function that makes one for the AttentionSpec that it is given"
)
_REFUSALS: Mapping[tuple[str, str], Refused] = {
    ("window", "ready_made"): Refused(
        "a ready-made attention backend sees what it was made for, so a window comes too late for it; pass a name, or "
        "a function that makes one for the AttentionSpec that it is given"
    ),
    ("window", "disaggregated"): Refused(
        "a prefill worker sends all blocks of a prompt, and a window frees some of them on the way"
    ),
    ("window", "mixed"): Refused(
        "the window of its sliding layers is part of the model, and the other layers have none"
    ),
    ("mixed", "ready_made"): Refused(
        "a ready-made attention backend was made for one kind of layer; pass a name, or a function that makes one for "
        "the AttentionSpec that it is given"
    ),
    ("draft_model", "mixed"): Refused(
        "a draft model uses the blocks of the model it guesses for, and here they belong to groups of its layers"
    ),
    ("mixed", "disaggregated"): Refused(
        "a prefill worker sends all blocks of a prompt, and sliding layers free some of them on the way"
    ),
    ("mixed", "expert_parallel"): Refused(
        "a model with such layers has no experts to share out: of the architectures that are read none has both"
    ),
    ("tensor_parallel", "disaggregated"): _ONE_RANK,
    ("expert_parallel", "disaggregated"): _ONE_RANK,
    ("tensor_parallel", "ready_made"): _ALL_HEADS,
    ("expert_parallel", "ready_made"): _ALL_HEADS,
    ("draft_model", "own_drafter"): Refused("both guess; give one of them"),
    ("stop", "no_tokenizer"): _TEXT_NEEDED,
    ("guided", "no_tokenizer"): _TEXT_NEEDED,
}

Cell = Works | Refused


def _cell(one: str, other: str) -> Cell:
    group = FEATURES[one].group
    if group and group == FEATURES[other].group:
        return ONE_OPTION
    return _REFUSALS.get((one, other)) or _REFUSALS.get((other, one)) or WORKS


TABLE: Mapping[tuple[str, str], Cell] = {
    (one, other): _cell(one, other) for one in FEATURES for other in FEATURES if one != other
}


def check_pairs(config: EngineConfig, also: Collection[str] = ()) -> None:
    """Refuse two features that do not go together.

    Args:
        also: Names of features that are on and no option of the engine: 'disaggregated', 'mixed'.

    Raises:
        ConfigError: Names both and the reason.
    """
    on = [name for name, feature in FEATURES.items() if name in also or feature.is_on(config)]
    for one, other in combinations(on, 2):
        cell = TABLE[one, other]
        if isinstance(cell, Refused):
            raise ConfigError(f"{FEATURES[one].option} and {FEATURES[other].option} do not go together: {cell.reason}.")


def as_markdown() -> str:
    """The whole table for the documentation; the reasons are a list under it."""
    names = list(FEATURES)
    reasons = list(dict.fromkeys(map(_reason, filter(_is_refused, TABLE.values()))))
    lines = ["| | " + " | ".join(str(number + 1) for number in range(len(names))) + " |", "|---" * len(names) + "|---|"]
    for row, one in enumerate(names):
        cells = ["·" if one == other else _mark(TABLE[one, other], reasons) for other in names]
        lines.append(f"| {row + 1} {FEATURES[one].title} | " + " | ".join(cells) + " |")
    legend = "✓ works, and the tests run it; – two values of one option; [n] refused, because"
    return "\n".join([*lines, "", legend, "", *(f"{number}. {reason}." for number, reason in enumerate(reasons, 1))])


def refusals_as_markdown() -> str:
    """The pairs that are refused, a row each; all others work, or are two values of one option."""
    lines = ["| feature | does not go with | because |", "|---|---|---|"]
    for one, other in combinations(FEATURES, 2):
        cell = TABLE[one, other]
        if _is_refused(cell):
            lines.append(f"| {FEATURES[one].title} | {FEATURES[other].title} | {_reason(cell)} |")
    return "\n".join(lines)


def _is_refused(cell: Cell) -> bool:
    return isinstance(cell, Refused) and cell.when != "never"


def _reason(cell: Cell) -> str:
    assert isinstance(cell, Refused)
    return cell.reason if cell.when == "start" else f"{cell.reason} (the request is refused, not the engine)"


def _mark(cell: Cell, reasons: Sequence[str]) -> str:
    if isinstance(cell, Works):
        return "✓"
    return f"[{reasons.index(_reason(cell)) + 1}]" if _is_refused(cell) else "–"
