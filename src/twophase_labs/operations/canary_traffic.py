"""A canary played on simulated traffic: tenants with habits of their own, and outcomes as often as shadow traffic saw.

What a variant gets right of each slice was measured (shadow.py). The requests, and how many first tokens are late, are
drawn: no real traffic is at hand, and what the section is about is how many requests a verdict takes.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

from twophase_labs.operations.canary_gate import Z_95, Line, lost, wilson
from twophase_labs.operations.shadow import SLICES

# What tenants of each kind ask, in the order of SLICES. One tenant in twenty-five has long texts.
HABITS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"chat": (0.60, 0.25, 0.00, 0.15), "forms": (0.10, 0.20, 0.00, 0.70), "archive": (0.05, 0.15, 0.75, 0.05)}
)
KINDS = MappingProxyType({"chat": 0.60, "forms": 0.36, "archive": 0.04})
NUM_TENANTS = 2000
LATE_SHARE = 0.006  # of first tokens on either side
BOUND, SLICE_BOUND = 0.05, 0.10  # of answers lost, of all and of a slice
LATE_BOUND = 0.01  # p99: at most one in a hundred beyond the SLO

Counts = dict[str, tuple[int, int]]


@dataclass
class Side:
    """What one side of the split has served: (passed, requests) by slice, and how many first tokens were late."""

    counts: Counts
    num_late: int = 0

    @property
    def total(self) -> tuple[int, int]:
        return sum(ok for ok, _ in self.counts.values()), sum(num for _, num in self.counts.values())


@dataclass(frozen=True)
class Look:
    """The two sides after so many requests."""

    num_requests: int
    before: Side
    canary: Side


def is_canary(tenant: str, share: float, salt: str) -> bool:
    """Whether a tenant's requests are the canary's.

    Args:
        share: Of all tenants, in [0, 1].
        salt: The name of the rollout.
    """
    digest = hashlib.sha256(f"{salt}\0{tenant}".encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def tenants(seed: int = 0) -> list[tuple[str, str]]:
    """(tenant, kind of its habits)."""
    draw = np.random.default_rng(seed)
    kinds = draw.choice(list(KINDS), NUM_TENANTS, p=list(KINDS.values()))
    return [(f"tenant-{number:04d}", str(kind)) for number, kind in enumerate(kinds)]


@cache
def requests(num: int, seed: int = 0) -> tuple[tuple[str, str], ...]:
    """(tenant, slice) of each request; a few tenants send most of them."""
    draw = np.random.default_rng(seed + 1)
    known = tenants(seed)
    activity = 1 / (1 + draw.permutation(NUM_TENANTS)) ** 0.5
    chosen = draw.choice(NUM_TENANTS, num, p=activity / activity.sum())
    found = []
    for at in chosen:
        tenant, kind = known[int(at)]
        found.append((tenant, SLICES[int(np.searchsorted(np.cumsum(HABITS[kind]), draw.random()))]))
    return tuple(found)


def play(
    rates: Mapping[str, Mapping[str, float]],
    looks: Sequence[int],
    *,
    share: float,
    salt: str,
    seed: int = 0,
) -> list[Look]:
    """Both sides at each look.

    Args:
        rates: Of 'before' and 'canary': the share of each slice that passes.
        looks: Numbers of requests, growing, after which one looks.
    """
    draw = np.random.default_rng(seed + 2)
    passed: dict[str, Counter[str]] = {"before": Counter(), "canary": Counter()}
    seen: dict[str, Counter[str]] = {"before": Counter(), "canary": Counter()}
    late = Counter[str]()
    found = []
    for number, (tenant, name) in enumerate(requests(max(looks), seed), 1):
        side = "canary" if is_canary(tenant, share, salt) else "before"
        luck, delay = draw.random(2)
        passed[side][name] += int(luck < rates[side][name])
        seen[side][name] += 1
        late[side] += int(delay < LATE_SHARE)
        if number in looks:
            sides = [
                Side({name: (passed[s][name], seen[s][name]) for name in SLICES}, late[s]) for s in ("before", "canary")
            ]
            found.append(Look(number, *sides))
    return found


def lines_of(look: Look, *, by_slice: bool, z: float = Z_95) -> list[Line]:
    """The gate's lines: answers that pass, of all requests or of each slice, and first tokens that are late.

    A p99 within its SLO says that at most 1 % of the requests are beyond it: a rate like any other.
    """
    before, canary = look.before, look.canary
    late = wilson(canary.num_late, canary.total[1], z)
    lines = [Line("late first tokens", *late, LATE_BOUND)]
    if not by_slice:
        return [Line("answers", *lost(before.total, canary.total, z), BOUND, 4.0, True), *lines]
    pairs = [(name, before.counts[name], canary.counts[name]) for name in SLICES]
    return [*(Line(name, *lost(old, new, z), SLICE_BOUND, 1.0, True) for name, old, new in pairs), *lines]


def rates_of(by_slice: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """What share of each slice passed in the shadow."""
    return {name: passed / num for name, (passed, num) in by_slice.items()}


def false_alarms(num_canaries: int = 2000, num_looks: int = 20, each: int = 100, seed: int = 0) -> dict[str, float]:
    """The share of canaries that are rolled back although both sides are the same, by how one looks.

    Both sides serve `each` requests more between two looks, and pass 90 % of them.
    """
    draw = np.random.default_rng(seed)
    passed = draw.binomial(each, 0.9, (2, num_canaries, num_looks)).cumsum(axis=-1)
    num = each * np.arange(1, num_looks + 1)
    before, canary = passed / num
    difference = before - canary
    error = np.sqrt((before * (1 - before) + canary * (1 - canary)) / num)
    strict = float(NormalDist().inv_cdf(1 - 0.025 / num_looks))
    return {
        "more than 2 points lost, at any look": float((difference > 0.02).any(axis=1).mean()),
        "95 % interval above 0, at the last look": float((difference - Z_95 * error > 0)[:, -1].mean()),
        "95 % interval above 0, at any look": float((difference - Z_95 * error > 0).any(axis=1).mean()),
        f"interval for {num_looks} looks above 0, at any": float((difference - strict * error > 0).any(axis=1).mean()),
    }
