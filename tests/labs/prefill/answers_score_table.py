"""Section 2.4 asks a prediction; it has no answers in code."""

from twophase_labs.machine.exercise import Bank

BANKS: dict[str, Bank] = {}
