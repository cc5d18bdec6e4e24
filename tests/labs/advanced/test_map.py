"""The last picture of lab 5 names files; they are there."""

import re

import pytest

from twophase_labs.machine.lab import Workbook

PACKAGES = ("twophase", "twophase_tools")
ROOT = Workbook.find().root
SOURCE = (ROOT / "labsolutions" / "05_advanced.py").read_text(encoding="utf-8")


def paths() -> list[str]:
    """Below src/twophase or src/twophase_tools: 'engine/runner.py', 'load/'; a bare name stands in the folder of the one before it."""
    picture = next(part for part in SOURCE.split("```mermaid")[1:] if "at the door" in part).split("```")[0]
    found = []
    for line in re.findall(r"<br/>([^\"]+)\"", picture):
        folder = ""
        for name in line.split(", "):
            folder = name.rpartition("/")[0] if "/" in name else folder
            found.append(name if "/" in name else f"{folder}/{name}")
    return found


@pytest.mark.parametrize("path", paths())
def test_it_is_where_the_picture_says(path: str) -> None:
    assert (ROOT / path).exists() or any((ROOT / "src" / package / path).exists() for package in PACKAGES)


def test_the_picture_is_found() -> None:
    assert len(paths()) > 20
