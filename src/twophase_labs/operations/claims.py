"""Numbers and comparisons of lab 8 that stand without a cell above them, and why."""

from twophase_labs.operations import claims_b

ALLOWED = claims_b.ALLOWED
