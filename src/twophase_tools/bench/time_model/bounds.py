"""Seconds of a launch: a lower bound, a prediction and an upper bound.

Lower bound: a latency, and then the busiest of what is shared: memory, or a pipe of all SMs; or one program's busiest
pipe, if that takes longer. Of code outside loops nothing counts.

Prediction: programs start in order, as many at once as fit on the SMs, and each takes the longest of

    memory   its bytes, with an equal share of the bandwidth for each program that runs;
    a pipe   what it asks of its SM's busiest pipe, times the programs on the SM;
    itself   loads that wait for each other, then the stall counts of a warp or, if longer, the program's issue, then
             its pipes of variable latency: within a program nothing overlaps but copies that are under way;
    copies   a latency per turn of a loop, divided by the turns whose copies are under way at once.

Upper bound: each takes the sum of them all, of every pipe but issue, with slower rates and one copy under way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from twophase_tools.bench.time_model.launches import Launch
from twophase_tools.bench.time_model.rates import ASSUMED, PIPES, VARIABLE_LATENCY
from twophase_tools.bench.time_model.trips import Trips

Seconds = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Card:
    num_sms: int
    bytes_per_s: float  # of its HBM, the data sheet's


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds. parts: what the prediction would be if nothing else took time."""

    lower: float
    predicted: float
    upper: float
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Demand:
    """Seconds of each program at one bound's rates, alone on its SM and with all the bandwidth."""

    first: float  # loads before any loop
    memory: Seconds
    chain: Seconds  # a warp's stall counts or, if longer, the program's issue
    copies: Seconds
    pipes: dict[str, Seconds]


def bound_launch(launch: Launch, trips: Trips, num_bytes: int, card: Card) -> Bounds:
    """`trips`: [programs, loops]; `num_bytes` go to and from HBM, shared out by the programs' turns of loops."""
    lowest, middle, highest = (_demand(launch, trips, num_bytes / card.bytes_per_s, bound) for bound in range(3))
    num_sms, slots = card.num_sms, card.num_sms * launch.programs_per_sm
    pipes = [seconds for pipe in lowest.pipes.values() for seconds in (pipe.sum() / num_sms, pipe.max())]
    lower = lowest.first + max(lowest.memory.sum(), *pipes)

    itself = middle.first + middle.chain + sum(middle.pipes[name] for name in VARIABLE_LATENCY)
    copies, busiest = middle.first + middle.copies, np.max([*middle.pipes.values()], axis=0)

    def overlapped(running: int) -> Seconds:
        return np.maximum.reduce([running * middle.memory, max(1, running / num_sms) * busiest, itself, copies])

    alone = highest.first + highest.copies + highest.chain
    every = sum(seconds for name, seconds in highest.pipes.items() if name != "issue")

    def one_by_one(running: int) -> Seconds:
        return running * highest.memory + max(1, running / num_sms) * every + alone

    launch_s = ASSUMED["launch_s"]
    predicted, upper = (makespan(seconds, len(trips), slots) for seconds in (overlapped, one_by_one))
    parts = {name: float(pipe.sum() / num_sms) for name, pipe in middle.pipes.items()}
    parts |= {"memory": float(middle.memory.sum()), "launch": launch_s.predicted + middle.first}
    parts |= {name: float(max(s.max(), s.sum() / slots)) for name, s in (("program", itself), ("copies", copies))}
    return Bounds(launch_s.lower + lower, launch_s.predicted + predicted, launch_s.upper + upper, parts)


def _demand(launch: Launch, trips: Trips, memory_s: float, bound: int) -> _Demand:
    rate, loops = {name: value[:3][bound] for name, value in ASSUMED.items()}, launch.code.loops

    def amount(name: str) -> Seconds:  # of a warp
        straight = launch.code.straight[name] if bound else 0
        return straight + trips @ np.array([loop[name] for loop in loops], float)

    copying = np.array([loop["copies"] > 0 for loop in loops], float)
    turns = trips @ copying if copying.any() else np.ones(len(trips))
    under_way = np.where(copying, max(1, launch.num_stages - 1), 1) if bound < 2 else np.ones(len(loops))
    per_s = {name: pipe[:3][bound] * rate["clock_hz"] / launch.num_warps for name, pipe in PIPES.items()}
    pipes = {name: amount(name) / per_s[name] for name in PIPES}
    return _Demand(
        first=rate["round_trips"] * rate["latency_s"],
        memory=memory_s / rate["hbm_share"] * turns / turns.sum(),
        chain=np.maximum(amount("stall") / rate["clock_hz"], pipes["issue"]),
        copies=rate["latency_s"] * (trips @ (1 / under_way)),
        pipes=pipes,
    )


def makespan(seconds: Callable[[int], Seconds], num_programs: int, slots: int) -> float:
    """Until all programs have ended, of which `slots` run at once, the others in order as those end.

    seconds(n): how long each program would take beside n - 1 others, all the way.
    """
    running, started, elapsed = np.arange(min(slots, num_programs)), min(slots, num_programs), 0.0
    left = np.ones(started)  # of each program that runs
    while len(running):
        each = seconds(len(running))[running]
        step = (left * each).min()
        elapsed += step
        left -= step / each
        goes_on = left > 1e-9
        fresh = np.arange(started, min(num_programs, started + int(np.count_nonzero(~goes_on))))
        started += len(fresh)
        running = np.concatenate([running[goes_on], fresh])
        left = np.concatenate([left[goes_on], np.ones(len(fresh))])
    return elapsed
