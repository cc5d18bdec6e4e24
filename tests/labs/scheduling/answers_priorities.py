"""Answers that prove the check of exercise 4.10."""

from twophase_labs.machine.bank import right, wrong

SERVES_BETTER, SERVES_EQUALS = "serves better priorities first", "serves equals by arrival"
IS_STRICT, LETS_THOSE = "is strict without ageing", "lets those that waited pass"
LETS_THE = "lets the number decide ties"

AGE_AS_LEVELS = """
def aged_rank(priority, arrival_s, number, patience_s):
    if patience_s is None:
        return priority, number, 0
    return priority + arrival_s / patience_s, number, 0
"""

# fmt: off
BANKS = {
    "4.10": (
        wrong("a list with ageing only", {3: "[seems_s, number]"}, by=SERVES_BETTER),
        wrong("first come, first served", {1: "(arrival_s, number)"}, by=SERVES_BETTER),
        wrong("no tie-break when ageing", {3: "(seems_s,)"}, by=SERVES_EQUALS),
        wrong("ages by default", {1: "(arrival_s + 60 * priority, number)"}, by=IS_STRICT),
        wrong("a second is a level", {2: "arrival_s + priority"}, by=LETS_THOSE),
        wrong("ten levels at most", {2: "arrival_s + min(priority, 10) * patience_s"}, by=LETS_THOSE),
        wrong("ties by arrival", {3: "(seems_s, arrival_s, number)"}, by=LETS_THE),
        wrong("ties by priority, not by number", "(seems_s", "(seems_s, priority", by=LETS_THE),
        right("endless patience, and NumPy's numbers",
              "if patience_s is None:\n        return (priority, arrival_s, number)\n    seems_s = arrival_s + priority * patience_s\n    return (seems_s, number)",
              "patience_s = 1000000000000.0 if patience_s is None else patience_s\n    return (np.float64(priority * patience_s + arrival_s), np.int64(number))"),
        right("in levels", AGE_AS_LEVELS),
    ),
}
