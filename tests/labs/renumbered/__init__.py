"""The demonstration workbook in a second edition: renumbered, one exercise new, some gone, sections with minutes."""

from pathlib import Path

from twophase_labs.machine.lab import Workbook

RENUMBERED = Workbook(Path(__file__).parent, "tests.labs.renumbered")
LAB = RENUMBERED.lab("1")
