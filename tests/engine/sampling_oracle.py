"""The sampling rules again, written the slow way: one row, fp64, a sort of the whole vocabulary."""

from collections import Counter
from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch

from tests.mutation import installed
from twophase.engine import sampler
from twophase.engine.sampler import SampleRow


def sample_of(module: ModuleType) -> Callable:
    """`sample` of a sampler; or the engine's own, with a feature that it uses, or a mutant of that, in its place."""
    if hasattr(module, "sample"):
        return module.sample

    def sample(*args):
        with installed(module):
            return sampler.sample(*args)

    return sample


def probabilities(logits, row: SampleRow) -> np.ndarray:
    """The exact distribution that a token is drawn from. Ties with the last token kept are kept."""
    x, params = np.array(torch.as_tensor(logits).tolist()), row.params
    for token, bias in params.logit_bias:
        x[token] += bias
    for token in set(row.token_ids):
        x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
    for token, count in Counter(row.token_ids[len(row.token_ids) - row.position :]).items():
        x[token] -= params.presence_penalty + count * params.frequency_penalty
    if row.allowed is not None:
        bits = [int(word) >> bit & 1 for word in row.allowed for bit in range(32)]
        x[[token for token in range(len(x)) if token >= len(bits) or not bits[token]]] = -np.inf
    x[list(row.banned)] = -np.inf
    if params.temperature == 0:
        return np.eye(len(x))[int(x.argmax())]
    p = softmax(x / params.temperature)
    if params.top_k:
        p = renormalised(p, p >= np.sort(p)[::-1][min(params.top_k, len(p)) - 1])
    if params.top_p < 1:
        ranked = np.sort(p)[::-1]
        p = renormalised(p, p >= ranked[int(np.argmax(ranked.cumsum() >= params.top_p))])
    return renormalised(p, p >= params.min_p * p.max())


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def renormalised(p: np.ndarray, kept: np.ndarray) -> np.ndarray:
    return np.where(kept, p, 0) / p[kept].sum()


def chi_square_p_value(counts: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's test: how likely counts at least this far from `expected` are, if those are right.

    Cells expecting fewer than 5 are merged into one, as the chi-square approximation needs.
    """
    small = expected < 5
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    if expected[-1] < 5:  # still too few: what lies there must be nearly nothing
        assert counts[-1] <= 30, f"{counts[-1]} draws where {expected[-1]:.2g} were expected"
        counts, expected = counts[:-1], expected[:-1]
    if len(counts) == 1:
        return 1.0  # every draw is in the one possible cell
    statistic = ((counts - expected) ** 2 / expected).sum()
    degrees = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))
