"""What all benchmarks do with their results: tables, JSON, files."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown that can be read as it is. A column whose name ends with a colon is aligned at the right."""
    is_right = [name.endswith(":") for name in columns]
    lines = [[name.removesuffix(":") for name in columns], *([str(cell) for cell in row] for row in rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * (width - right) + ":" * right for width, right in zip(widths, is_right, strict=True)])
    sides = [">" if right else "<" for right in is_right]
    return "\n".join(
        "| " + " | ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)) + " |"
        for line in lines
    )


def plain(value: Any) -> Any:
    """Infinities, which JSON has not, as text."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def save(found: Any, folder: Path, date_utc: str, *words: str) -> Path:
    """Write JSON to `<date>-<words>.json`, and return its path. An older file of that name stays."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(char if char.isalnum() else " " for char in " ".join(words).lower())
    name, number = "-".join([date_utc[:10], *text.split()]), 1
    path = folder / f"{name}.json"
    while path.exists():
        number += 1
        path = folder / f"{name}-{number}.json"
    path.write_text(json.dumps(plain(found), indent=1) + "\n", encoding="utf-8")
    return path
