"""How well predictions did: a results file of `bench kernels` against a file of predictions."""

import statistics
from typing import Any

from twophase.core.errors import ConfigError
from twophase_tools.bench.kernel_variants import OURS
from twophase_tools.bench.report import table


def score(measured: dict[str, Any], predictions: dict[str, Any]) -> dict[str, Any]:
    """Per case measured / predicted and whether the time lies within the bounds, None where none was measured; the
    share of measured cases within; the median ratio.

    Raises:
        ConfigError: Other files than these, of another card, or nothing of what was predicted was measured.
    """
    try:
        gpu, card = measured["machine"]["gpus"][0]["name"], predictions["card"].split()[1]
        ours = {(case["kernel"], case["label"]): _elapsed_s(case) for case in measured["results"]}
        cases = [_score_case(case, ours.get((case["kernel"], case["label"]))) for case in predictions["results"]]
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"--score takes results of `bench kernels`, then predictions; {error!r} here.") from error
    if card not in gpu.split():
        raise ConfigError(f"predictions for an {card} cannot be scored by results of an {gpu}.")
    ratios = [case["ratio"] for case in cases if case["ratio"] is not None]
    if not ratios:
        raise ConfigError("none of the predicted cases has a measured time of ours in these results.")
    return {
        "measured": len(ratios),
        "not_measured": len(cases) - len(ratios),
        "share_within_bounds": round(sum(case["is_within"] is True for case in cases) / len(ratios), 3),
        "median_ratio": round(statistics.median(ratios), 3),
        "cases": cases,
    }


def _elapsed_s(case: dict[str, Any]) -> float | None:
    return next((variant["elapsed_s"] for variant in case["variants"] if variant["name"] == OURS), None)


def _score_case(case: dict[str, Any], elapsed_s: float | None) -> dict[str, Any]:
    us, ratio, is_within = None, None, None
    if elapsed_s is not None:
        us = round(elapsed_s * 1e6, 2)
        ratio, is_within = round(us / case["predicted_us"], 3), case["lower_us"] <= us <= case["upper_us"]
    scored = {"measured_us": us, "ratio": ratio, "is_within": is_within}
    return {name: case[name] for name in ("kernel", "label", "predicted_us", "limited_by")} | scored


def score_text(scored: dict[str, Any]) -> str:
    rows = []
    for case in scored["cases"]:
        found = ("not measured", "", "")
        if case["ratio"] is not None:
            found = (f"{case['measured_us']:,.1f}", f"{case['ratio']:.2f}", "" if case["is_within"] else "outside")
        rows.append((f"{case['kernel']} {case['label']}", f"{case['predicted_us']:,.1f}", *found, case["limited_by"]))
    return (
        f"{table(('case', 'predicted us:', 'measured us:', 'ratio:', '', 'limited by'), rows)}\n"
        f"{scored['measured']} cases measured, {scored['not_measured']} not; within the bounds "
        f"{scored['share_within_bounds']:.0%}; measured / predicted, median: {scored['median_ratio']:.2f}"
    )
