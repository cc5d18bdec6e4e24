"""A demonstration workbook whose sections say their minutes; most exercises are those of `demo`."""

from pathlib import Path

from twophase_labs.machine.lab import Workbook

TIMED = Workbook(Path(__file__).parent, "tests.labs.timed")
LAB = TIMED.lab("1")
