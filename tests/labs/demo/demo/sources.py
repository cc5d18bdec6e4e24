"""Where the lab's facts from elsewhere were read."""

from twophase_labs.machine.sources import sources

SOURCES = sources("vLLM, 0.11: https://a.b/c")
