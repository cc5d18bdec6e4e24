"""Answers that prove the check of exercise 4.11."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

ACTIVE_SET = """
def fit_costs(records):
    from twophase_tools.simulate.nnls import nnls

    times = np.array([record.seconds for record in records])
    return nnls(np.array([(1, *record[:4]) for record in records]) / times[:, None], np.ones(len(times))).tolist()
"""
BACKWARDS = """
def fit_costs(records):
    rows = [[1 / r.seconds, *(float(x) / r.seconds for x in r[:4])] for r in records]
    found = []
    for mask in range(1, 32):
        used = [i for i in range(5) if mask >> i & 1]
        part = np.array([[row[i] for i in used] for row in rows])
        scale = np.abs(part).max(axis=0) + 1e-300
        x = np.linalg.lstsq(part / scale, np.ones(len(rows)), rcond=None)[0] / scale
        if min(x) >= 0:
            costs = [0.0] * 5
            for i, value in zip(used, x):
                costs[i] = float(value)
            found.append((sum((np.dot(row, costs) - 1) ** 2 for row in rows), costs))
    return min(found)[1]
"""
CLIPPED = """
def fit_costs(records):
    times = np.array([record.seconds for record in records])
    rows = np.array([(1, *record[:4]) for record in records]) / times[:, None]
    return np.maximum(np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)[0], 0)
"""
DROPS_ALL = """
def fit_costs(records):
    times = np.array([record.seconds for record in records])
    rows = np.array([(1, *record[:4]) for record in records]) / times[:, None]
    columns = list(range(5))
    while True:
        x = np.linalg.lstsq(rows[:, columns], np.ones(len(times)), rcond=None)[0]
        if (x >= 0).all():
            costs = np.zeros(5)
            costs[columns] = x
            return costs
        columns = [column for column, cost in zip(columns, x) if cost >= 0]
"""

BANKS = {
    "4.11": Bank(
        wrong=(
            Wrong(
                "through the origin",
                {1: "[(0, record.tokens, record.samples, record.context, record.pairs) for record in records]"},
                rejected_by="finds the costs that made the records",
            ),
            Wrong(
                "context and pairs swapped",
                {1: "[(1, record.tokens, record.samples, record.pairs, record.context) for record in records]"},
                rejected_by="finds the costs that made the records",
            ),
            Wrong("absolute errors", {2: "np.ones(len(records))"}, rejected_by="finds the costs that made the records"),
            Wrong("weighs long steps more", {2: "times"}, rejected_by="finds the costs that made the records"),
            Wrong("takes what is negative", {4: "error < least"}, rejected_by="has no negative cost"),
            Wrong("clips at zero", CLIPPED, rejected_by="has the least relative errors"),
            Wrong("drops all negatives at once", DROPS_ALL, rejected_by="has the least relative errors"),
            Wrong(
                "the first set that works",
                {4: "(x >= 0).all() and least == math.inf"},
                rejected_by="finds the costs that made the records",
            ),
            Wrong(
                "the worst set",
                {3: "-((part @ x - 1) ** 2).sum()"},
                rejected_by="finds the costs that made the records",
            ),
            Wrong(
                "absolute errors, rightly scaled",
                """
def fit_costs(records):
    from twophase_tools.simulate.nnls import nnls

    rows = np.array([(1.0, *record[:4]) for record in records])
    return nnls(rows, np.array([record.seconds for record in records]))
""",
                rejected_by="has the least relative errors",
            ),
            Wrong(
                "the error's sign counts",
                {3: "(part @ x - 1).sum()"},
                rejected_by="finds the costs that made the records",
            ),
        ),
        right=(Right("the active-set method", ACTIVE_SET), Right("bit masks, scaled columns", BACKWARDS)),
    ),
}
