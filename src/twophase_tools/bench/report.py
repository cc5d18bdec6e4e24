"""What all benchmarks do with their results: tables, JSON, files."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def table(rows: Sequence[Sequence[object]], name_width: int = 0) -> str:
    """Rows of cells in columns; the first column is at the left, of `name_width` at least, the others at the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    widths[0] = max(widths[0], name_width)
    lines = (
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in texts
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def plain(value: Any) -> Any:
    """Infinities, which JSON has not, as text."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def save(found: Any, path: Path) -> Path:
    """Write JSON; what it was written to: where there is a file of that name already, one with a number behind it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, wanted = 1, path
    while path.exists():
        number += 1
        path = wanted.with_stem(f"{wanted.stem}-{number}")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path
