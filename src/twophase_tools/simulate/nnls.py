"""Least squares with coefficients that cannot be negative: no step gets cheaper by doing more."""

import numpy as np
from jaxtyping import Float


def nnls(a: Float[np.ndarray, "m n"], b: Float[np.ndarray, "m"]) -> Float[np.ndarray, "n"]:
    """The x >= 0 that minimises |a x - b|, by the active-set method of Lawson and Hanson (Solving Least Squares
    Problems, 1974, chapter 23): free one coefficient at a time, the one whose growth helps most, and hold at zero
    whichever would turn negative.

    Raises:
        ValueError: A number that is not finite.
    """
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("least squares takes finite numbers only.")
    num_columns = a.shape[1]
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    a = a / scale  # columns of one length, so that one tolerance fits all
    tolerance = 1e-10 * max(1.0, float(np.linalg.norm(b)))
    x = np.zeros(num_columns)
    is_free = np.zeros(num_columns, dtype=bool)
    for _ in range(3 * num_columns + 3):  # each round frees one; in exact arithmetic none returns to an earlier set
        gradient = a.T @ (b - a @ x)
        gradient[is_free] = -np.inf
        best = int(np.argmax(gradient))
        if is_free.all() or gradient[best] <= tolerance:
            break
        is_free[best] = True
        while True:
            target = np.zeros(num_columns)
            target[is_free] = np.linalg.lstsq(a[:, is_free], b, rcond=None)[0]
            if (target[is_free] > 0).all():
                x = target
                break
            # Go towards it as far as every coefficient stays at or above zero, and hold the one that stops us.
            falling = is_free & (target <= 0)
            share = float(np.min(x[falling] / (x[falling] - target[falling] + 1e-300)))
            x = x + share * (target - x)
            is_free &= x > tolerance * 1e-3
            x[~is_free] = 0.0
            if not is_free.any():
                break
    return x / scale
