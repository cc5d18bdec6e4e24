"""Where the boxes 'In production, 2026' of this lab were read."""

from twophase_labs.operations import sources_b

SOURCES = sources_b.SOURCES
