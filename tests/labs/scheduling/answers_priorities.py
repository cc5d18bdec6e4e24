"""Answers that prove the check of exercise 4.10."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

AGE_AS_LEVELS = """
def aged_rank(priority, arrival_s, number, patience_s):
    if patience_s is None:
        return priority, number, 0
    return priority + arrival_s / patience_s, number, 0
"""
INFINITE_PATIENCE = """
def aged_rank(priority, arrival_s, number, patience_s):
    patience_s = 1e12 if patience_s is None else patience_s
    return np.float64(priority * patience_s + arrival_s), np.int64(number)
"""

BANKS = {
    "4.10": Bank(
        wrong=(
            Wrong(
                "larger is better", {1: "(-priority, arrival_s, number)"}, rejected_by="serves better priorities first"
            ),
            Wrong("first come, first served", {1: "(arrival_s, number)"}, rejected_by="serves better priorities first"),
            Wrong("no tie-break", {1: "(priority, arrival_s)"}, rejected_by="serves equals by arrival"),
            Wrong(
                "last come, first served", {1: "(priority, -arrival_s, number)"}, rejected_by="serves equals by arrival"
            ),
            Wrong(
                "a list, which no queue is sorted by",
                {1: "[priority, arrival_s, number]", 3: "[seems_s, number]"},
                rejected_by="serves better priorities first",
            ),
            Wrong("a list with ageing only", {3: "[seems_s, number]"}, rejected_by="serves better priorities first"),
            Wrong("no tie-break when ageing", {3: "(seems_s,)"}, rejected_by="serves equals by arrival"),
            Wrong(
                "ages by default", {1: "(arrival_s + 60 * priority, number)"}, rejected_by="is strict without ageing"
            ),
            Wrong("never ages", {3: "(priority, arrival_s, number)"}, rejected_by="lets those that waited pass"),
            Wrong("a second is a level", {2: "arrival_s + priority"}, rejected_by="lets those that waited pass"),
            Wrong(
                "more patience, faster ageing",
                {2: "arrival_s * patience_s + priority"},
                rejected_by="lets those that waited pass",
            ),
            Wrong(
                "ages the wrong way", {2: "priority * patience_s - arrival_s"}, rejected_by="serves equals by arrival"
            ),
        ),
        right=(Right("in levels", AGE_AS_LEVELS), Right("endless patience, and NumPy's numbers", INFINITE_PATIENCE)),
    ),
}
