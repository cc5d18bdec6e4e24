"""Answers that prove the check of exercise 4.11."""

from twophase_labs.machine.bank import right, wrong

FINDS_THE, HAS_NO = "finds the costs that made the records", "has no negative cost"
HAS_THE = "has the least relative errors"

ABSOLUTE_ERRORS_RIGHTLY_SCALED = """
def fit_costs(records):
    from twophase_tools.simulate.nnls import nnls

    rows = np.array([(1.0, *record[:4]) for record in records])
    return nnls(rows, np.array([record.seconds for record in records]))
"""
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

# fmt: off
BANKS = {
    "4.11": (
        wrong("weighs long steps more", {2: "times"}, by=FINDS_THE),
        wrong("the error's sign counts", {3: "(part @ x - 1).sum()"}, by=FINDS_THE),
        wrong("absolute errors", {2: "np.ones(len(records))"}, by=FINDS_THE),
        wrong("the worst set", {3: "-((part @ x - 1) ** 2).sum()"}, by=FINDS_THE),
        wrong("the first set that works", "error < least", "least == math.inf", by=FINDS_THE),
        wrong("through the origin",
              {1: "[(0, record.tokens, record.samples, record.context, record.pairs) for record in records]"},
              by=FINDS_THE),
        wrong("takes what is negative", {4: "error < least"}, by=HAS_NO),
        wrong("absolute errors, rightly scaled", ABSOLUTE_ERRORS_RIGHTLY_SCALED, by=HAS_THE),
        right("the active-set method", ACTIVE_SET),
        right("bit masks, scaled columns", BACKWARDS),
    ),
}
