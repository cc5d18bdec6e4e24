"""3.9 and 3.10 Neighbouring threads, neighbouring addresses."""

from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Choice


def naive_units(addresses: Tensor, num_bytes: int, unit_bytes: int) -> int:
    """A byte at a time."""
    return len({byte // unit_bytes for a in addresses.tolist() for byte in range(a, a + num_bytes)})


def check_units(answer: Any, addresses: Tensor, num_bytes: int, unit_bytes: int) -> None:
    expected = naive_units(addresses, num_bytes, unit_bytes)
    shown = addresses.tolist() if len(addresses) <= 4 else f"{addresses[:3].tolist()} and {len(addresses) - 3} more"
    what = f"the number of units of {unit_bytes} bytes for {num_bytes} bytes at {shown}"
    compare(answer.units_touched(addresses, num_bytes, unit_bytes), expected, what=what)


def counts_distant(answer: Any, draw: Draw, num: int, apart: int = 64) -> None:
    """Also 4 GiB apart, which 32 bits cannot tell from each other."""
    check_units(answer, apart * draw.permutation(20)[:num], 4, 32)


def counts_shared_once(answer: Any, draw: Draw, stride: int) -> None:
    check_units(answer, 4 * stride * torch.arange(32), 4, 32)


def counts_any_start(answer: Any, draw: Draw, start: int) -> None:
    check_units(answer, start + 4 * torch.arange(32), 4, 32)


def counts_both_sides(answer: Any, draw: Draw, num_bytes: int) -> None:
    check_units(answer, 64 * torch.arange(5) + 64 - num_bytes // 2, num_bytes, 64)


def counts_wide_items(answer: Any, draw: Draw) -> None:
    check_units(answer, torch.tensor([0, 1000]), 200, 32)


def counts_anything(answer: Any, draw: Draw, unit_bytes: int, num: int = 40, first: int = 0) -> None:
    """Random addresses from `first` on; a GPU's have up to 47 bits."""
    check_units(answer, first + draw.integers(0, 50 * num, num), draw.integer(1, 100), unit_bytes)


def leaves_addresses_alone(answer: Any, draw: Draw) -> None:
    addresses = draw.integers(0, 2000, 10)
    with unchanged(addresses=addresses):
        answer.units_touched(addresses, 4, 32)


EXERCISES = (
    Exercise(
        id="3.9",
        was="3.13",
        is_extra=True,
        title="Units of memory that an access touches",
        kind="code",
        names=("units_touched",),
        points=3,
        minutes=8,
        lines=4,
        objective="compute what a warp's load moves, from its addresses",
        hints=(
            "Take one item, 4 bytes at address 30, and units of 32. Which are its first and its last byte?",
            "The last byte of an item is `num_bytes - 1` after its first.",
            "Whole division turns a byte's address into its unit; a set keeps each unit once.",
        ),
        checks=(
            Property(
                "counts distant items",
                counts_distant,
                "An address divided by the size of a unit, rounded down, is the unit's number. Items in units of "
                "their own: as many units as items, none for none.",
                ({"num": 0}, {"num": 1}, {"num": 3}, {"num": 12}, {"num": 5, "apart": 2**32}),
            ),
            Property(
                "counts a shared unit once",
                counts_shared_once,
                "Eight neighbours of four bytes share a unit of 32: count distinct units, not items.",
                ({"stride": 1}, {"stride": 2}, {"stride": 16}),
            ),
            Property(
                "starts anywhere",
                counts_any_start,
                "128 bytes fill 4 units of 32 if they begin where a unit begins, and touch 5 if they do not.",
                ({"start": 32}, {"start": 20}),
            ),
            Property(
                "counts an item that lies in two units",
                counts_both_sides,
                "An item whose first byte is in one unit and its last in the next touches both.",
                ({"num_bytes": 2}, {"num_bytes": 8}),
            ),
            Property(
                "counts items wider than a unit",
                counts_wide_items,
                "Between an item's first and last unit there may be others; it touches those too.",
            ),
            Property(
                "agrees with a count of bytes",
                counts_anything,
                "Only units in which some item has a byte count; those in a gap do not.",
                (
                    {"unit_bytes": 32},
                    {"unit_bytes": 128},
                    {"unit_bytes": 48, "num": 3},
                    {"unit_bytes": 48},
                    {"unit_bytes": 32, "num": 1000},
                    {"unit_bytes": 32, "first": 2**46 + 12},
                ),
            ),
            Property("leaves its input alone", leaves_addresses_alone, "`//=` and its like write into the tensor."),
        ),
    ),
    Exercise(
        id="3.10",
        was="3.15",
        is_extra=True,
        title="What a layout costs",
        kind="choice",
        names=("answer_3_10",),
        points=1,
        minutes=3,
        objective="see which accesses a layout of K makes expensive",
        question=Choice(
            "abcd",
            "0cd61edbbef4a3dc",
            {
                "a": "a block of a head is one piece of 2,048 bytes in both, and all of it is read",
                "c": "one of the two takes everything that lies together, in whatever order it lies",
                "d": "the same bytes are asked for; count the sectors that they lie in",
            },
            hint="Where do the 64 numbers of one token lie, in each of the layouts? And all elements of a block?",
        ),
    ),
)
