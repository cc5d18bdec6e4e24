"""Every feature beside every other: the grid that docs/features.md shows and tests/engine/test_features.py runs.

A new feature is a row of `TITLES`, and an example in tests/engine/feature_runs.py; it works with every other one
unless `twophase_features.pairs`, `AT_A_REQUEST` or `ONE_OPTION` says why not.
"""

from collections.abc import Mapping
from itertools import combinations

from twophase_features.pairs import REFUSALS

TITLES: Mapping[str, str] = {
    "prefix_caching": "prefix caching",
    "salts": "cache salts",
    "whole_prompts": "chunked prefill off",
    "priority": "policy: priority",
    "chunked": "policy: chunked",
    "continuous": "policy: continuous",
    "prefill_first": "policy: prefill-first",
    "static": "policy: static",
    "dynamic": "policy: dynamic",
    "deadline": "policy: deadline",
    "rotating": "policy: rotating",
    "fair": "policy: fair",
    "swap": "preemption by swapping",
    "optimistic": "admission: optimistic",
    "reserve": "admission: reserve",
    "estimate": "admission: estimate",
    "watermark": "admission watermark",
    "several": "n > 1",
    "stop": "stop strings",
    "prompt_logprobs": "prompt log-probabilities",
    "guided": "guided decoding",
    "ngram": "n-gram drafter",
    "draft_model": "draft model",
    "own_drafter": "own drafter",
    "window": "sliding window, sinks",
    "mixed": "layers of different kinds",
    "int8_weights": "int8 weights",
    "int8_dynamic_weights": "int8_dynamic weights",
    "int8": "int8 K/V",
    "fp8": "fp8_e4m3 K/V",
    "expert_parallel": "expert parallel",
    "tensor_parallel": "tensor parallel",
    "disaggregated": "disaggregated",
    "triton": "Triton backend",
    "ready_made": "ready-made attention backend",
    "no_tokenizer": "no tokenizer",
}
# Features that are values of one option: they cannot be asked for together.
ONE_OPTION = (
    {name for name, title in TITLES.items() if title.startswith("policy: ")},
    {name for name, title in TITLES.items() if title.startswith("admission: ")},
    {"ngram", "draft_model"},
    {"int8_weights", "int8_dynamic_weights"},
    {"int8", "fp8"},
    {"triton", "ready_made"},
)
# Pairs that an engine may have, and that it refuses in a request.
_NO_TEXT = "it needs a tokenizer (the request is refused, not the engine)"
AT_A_REQUEST = {("stop", "no_tokenizer"): _NO_TEXT, ("guided", "no_tokenizer"): _NO_TEXT}
PAIRS = list(combinations(TITLES, 2))


def is_one_option(one: str, other: str) -> bool:
    return any({one, other} <= names for names in ONE_OPTION)


def refusal(one: str, other: str) -> str | None:
    """Why two features do not go together; None: they do, or are values of one option."""
    refusals = REFUSALS | AT_A_REQUEST
    return refusals.get((one, other)) or refusals.get((other, one))


def as_markdown() -> str:
    """The whole grid; the reasons are a list under it."""
    reasons = list(dict.fromkeys(reason for pair in PAIRS if (reason := refusal(*pair))))

    def mark(one: str, other: str) -> str:
        reason = refusal(one, other)
        if reason:
            return f"[{reasons.index(reason) + 1}]"
        return "·" if one == other else "–" if is_one_option(one, other) else "✓"

    numbers = " | ".join(str(number + 1) for number in range(len(TITLES)))
    lines = [f"| | {numbers} |", "|---" * len(TITLES) + "|---|"]
    for row, (one, title) in enumerate(TITLES.items(), 1):
        lines.append(f"| {row} {title} | " + " | ".join(mark(one, other) for other in TITLES) + " |")
    legend = "✓ works, and the tests run it; – two values of one option; [n] refused, because"
    return "\n".join([*lines, "", legend, "", *(f"{number}. {reason}." for number, reason in enumerate(reasons, 1))])


def refusals_as_markdown() -> str:
    """The pairs that are refused, a row each; all others work, or are two values of one option."""
    lines = ["| feature | does not go with | because |", "|---|---|---|"]
    for one, other in PAIRS:
        if reason := refusal(one, other):
            lines.append(f"| {TITLES[one]} | {TITLES[other]} | {reason} |")
    return "\n".join(lines)
