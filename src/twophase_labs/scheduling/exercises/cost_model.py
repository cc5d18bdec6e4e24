"""4.11 A cost model fitted to steps."""

import math
from typing import Any

import numpy as np

from twophase_labs.machine.checks import Draw, reject, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.scheduling.prediction import StepRecord
from twophase_tools.simulate.nnls import nnls

COSTS = exercise(
    "4.11", "Fit a cost model", "fit_costs", points=3, minutes=12, lines=4, difficulty=3, is_extra=True, time_limit_s=15
)
COSTS.objective = "fit non-negative costs to measured steps"
COSTS.hints = (
    "A row per record, a column per cost; the first column is 1, for what every step costs.",
    "Relative errors: divide each row, and the time it should give, by the measured time.",
    "Of all sets of columns, the best one whose least squares has no negative cost.",
)

NAMES = ("per step", "per token", "per sample", "per key of context", "per pair")


def true_costs(draw: Draw) -> list[float]:
    scales = (2e-2, 1e-3, 1e-3, 5e-6, 1e-6)
    return [scale * draw.random.uniform(0.5, 2) for scale in scales]


def records_of(draw: Draw, costs: list[float], num: int, noise: float = 0.0) -> list[StepRecord]:
    """Steps of all kinds: decodes only, prompts only, and both."""
    found = []
    for i in range(num):
        num_decodes = 0 if i % 4 == 1 else draw.integer(1, 32)
        chunk = 0 if i % 4 == 2 else draw.integer(1, 300)
        samples = num_decodes + (chunk > 0) * draw.integer(0, 2)
        context, start = num_decodes * draw.integer(10, 900), draw.integer(0, 200)
        pairs = chunk * start + chunk * (chunk + 1) // 2
        features = (1, num_decodes + chunk, samples, context, pairs)
        time_s = sum(cost * feature for cost, feature in zip(costs, features, strict=True))
        found.append(StepRecord(*features[1:], time_s * math.exp(draw.random.gauss(0, noise))))
    return found


def fitted(answer: Any, records: list[StepRecord]) -> list[float]:
    with unchanged(records=records):
        got = answer.fit_costs(records)
    costs = [float(one) for one in got] if np.ndim(got) == 1 else []
    if len(costs) != len(NAMES) or not all(map(math.isfinite, costs)):
        reject(f"fit_costs returns five finite numbers, {', '.join(NAMES)}; it returned {got!r}")
    return costs


def predicted(costs: list[float], records: list[StepRecord]) -> list[float]:
    return [float(np.dot(costs, (1, *record[:4]))) for record in records]


@COSTS.check("finds the costs that made the records", num=(12, 30, 300))
def finds_true_costs(answer: Any, draw: Draw, num: int) -> None:
    """Without noise all five come out: per step, token, sample, key of context, pair, in this order. If all five
    are off by far, look at the row weights: with the true costs, each weighted row times the costs adds up to 1."""
    costs = true_costs(draw)
    records = records_of(draw, costs, num)
    got = fitted(answer, records)
    for name, one, other in zip(NAMES, got, costs, strict=True):
        if not abs(one - other) <= 1e-3 * other:
            reject(f"the cost {name} is {one:.4g} s, and the records were made with {other:.4g} s")


@COSTS.check("has no negative cost")
def none_negative(answer: Any, draw: Draw) -> None:
    """Leave out a column whose cost would be negative (setting it to 0 afterwards fits something else)."""
    # Without noise nothing is negative; with it, a free fit of small costs often is.
    for _ in range(8):
        costs = true_costs(draw)
        costs[2] = costs[3] = 0.0
        records = records_of(draw, costs, 14, noise=0.1)
        got = fitted(answer, records)
        for name, cost in zip(NAMES, got, strict=True):
            if cost < 0:
                reject(f"the cost {name} is {cost:.3g} s: a step would be shorter for doing more")


def relative_rows(records: list[StepRecord]) -> Any:
    return np.array([(1, *record[:4]) for record in records]) / np.array([[record.seconds] for record in records])


def without_negatives(rows: Any, one_by_one: bool) -> Any:
    """Least squares again and again, each time without the columns whose costs came out negative: too greedy."""
    columns = list(range(5))
    while True:
        x = np.linalg.lstsq(rows[:, columns], np.ones(len(rows)), rcond=None)[0]
        if (x >= 0).all():
            return sum((rows[:, columns] @ x - 1) ** 2)
        dropped = (x <= x.min()) if one_by_one else (x < 0)
        columns = [column for column, drop in zip(columns, dropped, strict=True) if not drop]


def tempting_records(draw: Draw) -> list[StepRecord]:
    """Noisy steps on which leaving out negative columns is too much, all at once or the worst one by one."""
    while True:
        costs = [cost * draw.choice((0, 1)) for cost in true_costs(draw)]
        costs[0] = 2e-2
        records = records_of(draw, costs, 16, 0.3)
        rows = relative_rows(records)
        best = ((rows @ nnls(rows, np.ones(len(rows))) - 1) ** 2).sum()
        if min(without_negatives(rows, one_by_one) for one_by_one in (False, True)) > 1.001 * best:
            return records


@COSTS.check("has the least relative errors", noise=(0.05, 0.3))
def fits_best(answer: Any, draw: Draw, noise: float) -> None:
    """A step of 20 ms that is predicted as 30 is worse than one of 700 ms predicted as 710. And compare all sets of
    columns, not the first that works."""
    # Against Lawson and Hanson's method, which never tries all subsets.
    for attempt in range(6):
        costs = true_costs(draw)
        costs[draw.integer(1, 5)] = 0.0
        records = records_of(draw, costs, 16, noise) if attempt else tempting_records(draw)
        compare_with_best(answer, records)


def compare_with_best(answer: Any, records: list[StepRecord]) -> None:
    a = relative_rows(records)
    costs, best = fitted(answer, records), nnls(a, np.ones(len(records)))
    errors = [float(((a @ one - 1) ** 2).sum()) for one in (np.array(costs), best)]
    if errors[0] > errors[1] * (1 + 1e-6) + 1e-12:
        rms = [100 * math.sqrt(error / len(records)) for error in errors]
        reject(
            f"the relative error is {rms[0]:.3g} % (root of the mean square), and {rms[1]:.3g} % is possible",
            f"costs {', '.join(f'{one:.3g}' for one in costs)} s",
        )


@COSTS.check("leaves out the right ones", seed=(76, 94, 135))
def leaves_out_the_right_ones(answer: Any, draw: Draw, seed: int) -> None:
    """Which columns to leave out cannot be seen from one fit: without one of them another may be positive again.
    Try every set."""
    # Records for which leaving out all negative costs at once, or the first, or the worst one by one, fits worse.
    fixed = Draw(seed)
    costs = true_costs(fixed)
    costs[fixed.integer(1, 5)] = 0.0
    costs[fixed.integer(1, 5)] = 0.0
    compare_with_best(answer, records_of(fixed, costs, 16, 0.3))
