"""7.7: how many of the engines compute prompts."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number


def best_split() -> int:
    from twophase_labs.many_machines.fleets import best_split

    return best_split()


GUESS_7_10 = exercise("7.10", "How many compute prompts?", kind="prediction", points=1, minutes=5, time_limit_s=120)
GUESS_7_10.objective = "size a prefill pool from a rate"
GUESS_7_10.question = Number(
    best_split,
    rel=0,
    unit="engines",
    hint="How many prompts arrive while one is computed? That many engines are busy with prompts, on average.",
)
