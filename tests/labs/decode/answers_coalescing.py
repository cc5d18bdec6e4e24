"""Answers that prove the checks of exercise 3.9."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

EVERY_BYTE = """
def units_touched(addresses, num_bytes, unit_bytes):
    every_byte = addresses.flatten()[:, None] + torch.arange(num_bytes)
    return len(torch.unique(every_byte // unit_bytes))
"""
SORTED = """
def units_touched(addresses, num_bytes, unit_bytes):
    count, seen = 0, -1
    for address in sorted(addresses.tolist()):
        begin, end = max(seen + 1, address // unit_bytes), (address + num_bytes - 1) // unit_bytes
        count += max(0, end - begin + 1)
        seen = max(seen, end)
    return count
"""
IN_PLACE = """
def units_touched(addresses, num_bytes, unit_bytes):
    last = (addresses + num_bytes - 1) // unit_bytes
    addresses //= unit_bytes
    touched = set()
    for begin, end in zip(addresses.tolist(), last.tolist()):
        touched.update(range(begin, end + 1))
    return len(touched)
"""
SPAN = """
def units_touched(addresses, num_bytes, unit_bytes):
    first, last = int(addresses.min()), int(addresses.max()) + num_bytes - 1
    return last // unit_bytes - first // unit_bytes + 1
"""
EVERY_ITEM = """
def units_touched(addresses, num_bytes, unit_bytes):
    first, last = addresses // unit_bytes, (addresses + num_bytes - 1) // unit_bytes
    return int((last - first + 1).sum())
"""
BYTES_DIVIDED = """
def units_touched(addresses, num_bytes, unit_bytes):
    return -(-len(addresses) * num_bytes // unit_bytes)
"""
ENDS_ONLY = """
def units_touched(addresses, num_bytes, unit_bytes):
    return len({*(addresses // unit_bytes).tolist(), *((addresses + num_bytes - 1) // unit_bytes).tolist()})
"""

DISTANT, SHARED, START = "counts distant items", "counts a shared unit once", "starts anywhere"
BOTH, WIDE, BYTES = (
    "counts an item that lies in two units",
    "counts items wider than a unit",
    "agrees with a count of bytes",
)

BANKS = {
    "3.9": Bank(
        wrong=(
            Wrong("a list of units", EVERY_ITEM, SHARED),
            Wrong("bytes divided by the unit", BYTES_DIVIDED, DISTANT),
            Wrong("from the first to the last address", SPAN, DISTANT),
            Wrong("addresses as units", {1: "addresses", 2: "addresses"}, SHARED),
            Wrong("the byte behind the item", {2: "(addresses + num_bytes) // unit_bytes"}, SHARED),
            Wrong("the first byte only", {2: "addresses // unit_bytes"}, BOTH),
            Wrong("the first unit only", {3: "[begin]"}, BOTH),
            Wrong("the last unit left out", {3: "range(begin, end)"}, DISTANT),
            Wrong("first and last unit only", ENDS_ONLY, WIDE),
            Wrong("returns the units", {4: "touched"}, DISTANT),
            Wrong("divides in place", IN_PLACE, "leaves its input alone"),
        ),
        right=(
            Right("every byte", EVERY_BYTE),
            Right("sorted, without a set", SORTED),
            Right("floor_divide", {1: "addresses.div(unit_bytes, rounding_mode='floor')"}),
        ),
    ),
}
