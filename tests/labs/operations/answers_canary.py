"""Answers that prove the check of exercise 8.11."""

from twophase_labs.machine.bank import right, wrong

YES_NO, ENDS, STAYS = "says True or False", "takes nobody at 0 and everybody at 1", "keeps a key on its side"
EVERYWHERE, SHARE, GROWS = "is the same in another process", "takes its share", "only grows"
SALTS, JOINS, GOOD = "draws anew for each salt", "keeps salt and key apart", "promotes what is good"
HARD, OPEN_HARD, WEIGHS = "rolls back if a hard line is broken", "waits while a hard line is open", "weighs its lines"
ALONE, GAIN, HARD_TOO = "lets a soft line break alone", "takes a gain for no loss", "has hard lines in the mean, too"
OPEN_MEAN, BOUNDS = "waits while the mean is open", "takes the bounds it is given"
EDGES, ONE, SAME = "lets what is at the bound pass", "has the rate of one slice", "keeps a rate at its own mix"
OTHER, PASSES_OVER = "follows the other mix", "passes over slices that the mix has not"
NONE = "says None where it knows nothing"

THREE_STEPS = """
def decide(lines, most_used=0.5):
    states = {line.is_hard and (2 if line.low > line.bound else 1 if line.high > line.bound else 0) for line in lines}
    if 2 in states:
        return "roll back"
    total = sum(line.weight for line in lines)
    best = sum(line.weight / total * sorted((0, line.low / line.bound, 1))[1] for line in lines)
    worst = sum(line.weight / total * sorted((0, line.high / line.bound, 1))[1] for line in lines)
    if any(state is not False and state == 1 for state in states):
        return "wait"
    if best > most_used:
        return "roll back"
    if worst > most_used:
        return "wait"
    return "promote"
"""

# fmt: off
BANKS = {
    "8.11": (
        wrong("promotes last", {6: '"wait"'}, by=GOOD),
        wrong("hard lines are weighed", {1: "False", 2: "False"}, by=HARD),
        wrong("a hard line's high decides", {1: "any(line.high > line.bound for line in hard)"}, by=OPEN_HARD),
        wrong("never rolls back by its mean", {5: "False"}, by=WEIGHS),
        wrong("all lines are hard", {1: "any(line.low > line.bound for line in lines)"}, by=ALONE),
        wrong("a large gain breaks a hard line", {1: "any(abs(line.low) > line.bound for line in hard)"}, by=GAIN),
        wrong("soft lines alone", "min(1, max(0, loss / line.bound))",
              "0 if line.is_hard else min(1, max(0, loss / line.bound))", by=HARD_TOO),
        wrong("by the worst case", {5: "mean_used([line.high for line in lines]) > most_used"}, by=OPEN_MEAN),
        wrong("in the line's own unit", "loss / line.bound", "loss", by=BOUNDS),
        wrong("a tolerance", {2: "any(line.high > 1.01 * line.bound for line in hard)"}, by=EDGES),
        right("states of the hard lines", THREE_STEPS),
        right("a dot product",
              {4: "(torch.tensor(weights).double() / sum(weights) @ torch.tensor(used, dtype=torch.float64)).item()"}),
    ),
}
