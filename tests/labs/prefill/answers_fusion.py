"""Answers that prove the check of exercise 2.6."""

from twophase_labs.machine.bank import right, wrong

ADDS, NORMALISES = "adds the residual", "normalises each row"
MULTIPLIES_BY, ADDS_EPS = "multiplies by the weights", "adds eps under the root"

# fmt: off
BANKS = {
    "2.6": (
        wrong("always the first row", "row * N + columns", "columns", by=ADDS),
        wrong("no mask for h", ".store(h_ptr + offs, h, mask=mask", ".store(h_ptr + offs, h", by=ADDS),
        wrong("no residual", ".load(x_ptr + offs, mask=mask, other=0.0) + tl.load(residual_ptr", ".load(x_ptr",
              by=ADDS),
        wrong("the mean, not of squares", "tl.sum(h * h, axis=0)", "tl.sum(h, axis=0)", by=NORMALISES),
        wrong("a sum, not a mean", ".sum(h * h, axis=0) / N", ".sum(h * h, axis=0)", by=NORMALISES),
        wrong("no weights", "h * tl.rsqrt(mean_square + eps) * weight", "h * tl.rsqrt(mean_square + eps)",
              by=MULTIPLIES_BY),
        wrong("no eps", "mean_square + eps", "mean_square", by=ADDS_EPS),
        wrong("eps after the root", "tl.rsqrt(mean_square + eps", "(1.0 / (tl.sqrt(mean_square) + eps)", by=ADDS_EPS),
        right("masked again", "tl.sum(h * h, axis=0)", "tl.sum(tl.where(mask, h * h, 0.0), axis=0)"),
        right("a root and a division", "* tl.rsqrt", "/ tl.sqrt"),
    ),
}
