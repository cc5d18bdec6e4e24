"""Bisect a failing batch until only the faulty items fail."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from twophase_features.parallel.peers import PeerLostError

T = TypeVar("T")
R = TypeVar("R")


def isolate(compute: Callable[[Sequence[T]], Sequence[R]], items: Sequence[T]) -> list[R | Exception]:
    """`compute(items)`, one result per item; an item whose computation raises gets the exception as its result.

    When `compute` raises, it is called again on each half. So f faulty items among n cost about 2 f log2(n) smaller
    calls, and items that fail only together (out of memory) succeed apart. `compute` must be safe to repeat. A lost
    peer is not an item's fault and does not come back: all items get that error at once. KeyboardInterrupt and similar
    exceptions pass through.
    """
    if not items:
        return []
    try:
        return list(compute(items))
    except PeerLostError as error:
        return [error] * len(items)
    except Exception as error:
        if len(items) == 1:
            return [error]
    middle = len(items) // 2
    return isolate(compute, items[:middle]) + isolate(compute, items[middle:])
