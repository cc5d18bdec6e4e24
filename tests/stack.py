"""Room on Python's stack, so that no test happens to run at the edge of a piece of it.

CPython takes memory for its frames from the system in pieces of 16 KiB, and gives a piece back as soon as no frame is in
it. A loop whose calls cross from one piece into the next maps and unmaps memory for each of them: Triton's interpreter,
whose calls are deep, spent almost half of its time so. A frame that is larger than a piece gets one of twice its
size at most, and what it calls finds place behind it.
"""

from collections.abc import Callable
from typing import Any


def with_room(call: Callable, /, **arguments: Any) -> Any:
    return call(**arguments)


with_room.__code__ = with_room.__code__.replace(co_stacksize=2**15)  # of 8 bytes; just more than a power of two of them
