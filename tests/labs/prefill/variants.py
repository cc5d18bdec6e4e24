"""Whole cells that differ from another one in a few places."""


def edited(cell: str, *changes: tuple[str, str]) -> str:
    """`cell` with each (before, after) made once.

    Raises:
        ValueError: `before` is not in the cell, or more than once.
    """
    for before, after in changes:
        if cell.count(before) != 1:
            raise ValueError(f"{before!r} occurs {cell.count(before)} times in the cell, not once")
        cell = cell.replace(before, after)
    return cell
