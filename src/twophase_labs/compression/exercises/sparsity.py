"""6.8: what zeros save in time."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number


def share_of_zeros_kept() -> float:
    from twophase_labs.compression.zeros import sparse_over_dense

    return sparse_over_dense()


GUESS_6_8 = exercise(
    "6.8", "Nine of ten are zero", kind="prediction", points=1, minutes=3, is_extra=True, time_limit_s=60
)
GUESS_6_8.objective = "expect what a product with a sparse matrix costs"
GUESS_6_8.hints = ("A tenth of the products are left. What else does the processor have to read for each of them?",)
GUESS_6_8.question = Number(
    share_of_zeros_kept,
    factor=1.6,
    unit="times the dense product",
    hint="For each weight that is left, its column is read too, and the element of x that the column names.",
)
