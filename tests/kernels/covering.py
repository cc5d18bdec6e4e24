"""Combinations of values that have every two, or every three, of them between them: far fewer than all."""

import itertools
import random
from functools import cache
from typing import Any

import pytest

from tests.kernels.cases import HERE

Axes = tuple[tuple[Any, ...], ...]


def parts_of(values: tuple[Any, ...], strength: int) -> set[tuple[tuple[int, Any], ...]]:
    """Each `strength` of a combination's values, with their axes."""
    return set(itertools.combinations(enumerate(values), strength))


def all_parts(axes: Axes, strength: int) -> set[tuple[tuple[int, Any], ...]]:
    """Every `strength` values of as many axes."""
    chosen = itertools.combinations(enumerate(axes), strength)
    return {
        part for some in chosen for part in itertools.product(*([(i, value) for value in axis] for i, axis in some))
    }


@cache
def covering(axes: Axes, strength: int) -> tuple[tuple[Any, ...], ...]:
    """Combinations with all of `all_parts` between them: of several drawn, that with most new ones is next."""
    rng, found, missing = random.Random(0), [], all_parts(axes, strength)
    for wanted in sorted(missing, key=str):
        if wanted in missing:
            drawn = [[rng.choice(axis) for axis in axes] for _ in range(60)]
            for values in drawn:
                for i, value in wanted:
                    values[i] = value
            best = max(map(tuple, drawn), key=lambda values: len(missing & parts_of(values, strength)))
            missing -= parts_of(best, strength)
            found.append(best)
    return tuple(found)


def selected(*axes: tuple[Any, ...], strength: int = 1) -> list[Any]:
    """Every combination, as parameters of a test. Off a GPU only the `covering` ones run by default: each is compiled."""
    chosen = covering(axes, strength)
    return [
        pytest.param(*values, marks=() if values in chosen or HERE == "cuda" else pytest.mark.full)
        for values in itertools.product(*axes)
    ]
