"""Answers that prove the check of exercise 3.21."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

NORMAL_EQUATIONS = """
def fit_line(t, y):
    table = np.stack([np.ones(len(t)), np.array(t, dtype=float)], axis=1)
    a, b = np.linalg.lstsq(table, np.array(y, dtype=float), rcond=None)[0]
    return a, b
"""
PLAIN_SUMS = """
def fit_line(t, y):
    n, st, sy = len(t), sum(t), sum(y)
    sty, stt = sum(p * q for p, q in zip(t, y)), sum(p * p for p in t)
    b = (n * sty - st * sy) / (n * stt - st * st)
    return (sy - b * st) / n, b
"""
ENDS = """
def fit_line(t, y):
    b = (y[-1] - y[0]) / (t[-1] - t[0])
    return y[0] - b * t[0], b
"""
SORTS = """
def fit_line(t, y):
    pairs = sorted(zip(t, y))
    t[:], y[:] = [p for p, _ in pairs], [q for _, q in pairs]
    b, a = np.polyfit(t, y, 1)
    return a, b
"""

POLYNOMIAL = """
def fit_line(t, y):
    b, a = np.polyfit(np.array(t) - np.mean(t), y, 1)
    return a - b * np.mean(t), b
"""

BANKS = {
    "3.21": Bank(
        wrong=(
            Wrong(
                "through the origin",
                {3: "(t * y).sum() / (t * t).sum()", 4: "0.0"},
                rejected_by="finds a line that is there",
            ),
            Wrong(
                "b first",
                {4: "b", 3: "y.mean() - (dt * dy).sum() / (dt * dt).sum() * t.mean()"},
                rejected_by="finds a line that is there",
            ),
            Wrong("a is the mean", {4: "y.mean()"}, rejected_by="finds a line that is there"),
            Wrong("a is the first point", {4: "y[0]"}, rejected_by="finds a line that is there"),
            Wrong("the first point and the last", ENDS, rejected_by="has the least squares"),
            Wrong("a mean of ratios", {3: "(dy / dt).mean()"}, rejected_by="has the least squares"),
            Wrong(
                "divides by the wrong spread",
                {3: "(dt * dy).sum() / (dy * dy).sum()"},
                rejected_by="finds a line that is there",
            ),
            Wrong(
                "covariance over n - 1, variance over n",
                {3: "np.cov(t, y)[0, 1] / np.var(t)"},
                rejected_by="finds a line that is there",
            ),
            Wrong("plain sums", PLAIN_SUMS, rejected_by="keeps its digits"),
            Wrong("sorts the lists it was given", SORTS, rejected_by="leaves its inputs alone"),
        ),
        right=(Right("linear algebra", NORMAL_EQUATIONS), Right("a polynomial", POLYNOMIAL)),
    ),
}
