"""The incidents of the dashboards with their cures applied: the same requests, at the same times."""

from collections.abc import Mapping
from dataclasses import replace

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_labs.kit.draw import done
from twophase_labs.operations.dashboards import SHOWN
from twophase_labs.operations.incidents import FAST_LINK, Hour, outcome
from twophase_labs.operations.overload import LAST, Overload
from twophase_tools.colours import COLOURS, INK

COLUMN_OF = {hour.cause: name for name, (hour, _) in SHOWN.items()}


def _cured(cause: str, hour: Hour) -> dict[str, Hour]:
    setting, traffic = hour.setting, hour.traffic
    if cause == "kv":
        return {
            "reserve the worst case": replace(hour, setting=replace(setting, admission="reserve")),
            "max_tokens=256": replace(hour, setting=replace(setting, max_tokens=256)),
        }
    if cause == "batching":
        return {"chunks of 512": replace(hour, setting=replace(setting, policy=ChunkedPrefillPolicy(512)))}
    if cause == "format":
        return {"a grammar's mask": replace(hour, traffic=replace(traffic, invalid=0.0))}
    half = replace(traffic, rate_per_s=traffic.rate_per_s / 2)
    together = replace(setting, link_bytes_per_s=None, link_jitter=1.0)
    return {
        "a fast link": replace(hour, setting=replace(setting, link_bytes_per_s=FAST_LINK, link_jitter=1.0)),
        "each GPU does both": replace(hour, setting=together, traffic=half),
    }


def lines(cause: str) -> str:
    """An incident and its cures, a line each. Where each GPU does both: one of the two, with half of the traffic."""
    column = COLUMN_OF[cause]
    hour, seed = SHOWN[column]
    runs = {"as it was": hour} | _cured(cause, hour)
    return "\n".join(f"{column}, {name:22} {outcome(each, seed).line}" for name, each in runs.items())


def draw_ladder(runs: Mapping[str, Overload]) -> Figure:
    """K/V use and level over time: an engine left to itself, and one with a ladder before it."""
    figure, panels = plt.subplots(3, len(runs), figsize=(10, 5), facecolor="white", sharex=True, sharey="row",
                                  squeeze=False)  # fmt: skip
    for column, (title, run) in enumerate(runs.items()):
        usage, age, level = panels[:, column]
        usage.plot(run.times_s, [100 * each for each in run.kv_usage], color=COLOURS[0], linewidth=1.6)
        usage.axhline(85, color=INK, linewidth=0.8, linestyle=":")
        age.plot(run.times_s, run.queue_age_s, color=COLOURS[5], linewidth=1.6)
        level.step(run.times_s, run.levels, where="post", color=COLOURS[1], linewidth=1.8)
        usage.set_title(title, loc="left", fontsize=10)
        usage.set_ylim(0, 105)
        level.set(ylim=(-0.3, LAST + 0.3), xlabel="time in s")
        for axes in (usage, age, level):
            axes.spines[["top", "right"]].set_visible(False)
    for axes, label in zip(panels[:, 0], ("K/V in use, %", "queue age, s", "level"), strict=True):
        axes.set_ylabel(label)
    return done(figure)
